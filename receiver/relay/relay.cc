#include "receiver/relay/relay.h"

#include <atomic>

#include "common/base/call_end.h"
#include "common/base/log.h"

namespace deltawire::receiver {
namespace {

// A stream that is cut ends its frame within PullServer's cut_grace.
constexpr std::chrono::milliseconds kCutTimeout{2000};

}  // namespace

/// The channel by which one replica reports its versions.
class Relay::Channel : public Downstream {
 public:
  using OnCorrupt = std::function<void(const std::string& fingerprint, uint32_t chunk)>;
  Channel(Relay& relay, std::string model, OnCorrupt on_corrupt)
      : relay_(relay),
        name_(std::move(model)),
        on_corrupt_(std::move(on_corrupt)),
        expected_until_(SteadyClock::now() + relay.options_.start_patience) {}

  bool ServeCommitted(const Buffer& buffer, std::shared_ptr<ServedFile> file,
                      std::shared_ptr<const Delta> delta, const Identity& from) override {
    auto model = relay_.Find(name_);
    const bool fresh = model == nullptr || model->published() == nullptr;
    const bool unknown = model == nullptr;
    if (unknown) model = Make(buffer);
    const Status installed = model->Install(buffer, std::move(file), std::move(delta), from);
    const bool said = std::exchange(not_served_, installed) == installed;
    const bool failed_before = failed_.exchange(!installed.ok());
    if (!installed.ok()) {
      LogLine(said ? LogLevel::kDebug : LogLevel::kWarn,
              "model {}: {} is not served to other receivers yet: {}", name_,
              ToString(buffer.committed()), MessageOf(installed));
      // Until it is served, receivers that follow this relay stay at an old version. After the
      // second failure in a row the relay cuts them off.
      if (failed_before && !fresh) {
        Withdraw(Errorf(StatusCode::kAborted, "this relay cannot serve its committed version: {}",
                        MessageOf(installed)));
      }
      return false;
    }
    if (unknown) relay_.SetModel(name_, model);
    const auto incoming = model->incoming();
    const auto published = model->published();
    if (incoming != nullptr && IsOf(incoming->identity(), published->info.identity)) {
      model->KeepPayloads(*incoming);
      incoming->Settle(published);
    }
    relay_.desk_.Announce(*model);
    return true;
  }

  bool ServeIncoming(const Buffer& buffer, std::shared_ptr<IncomingVersion> version) override {
    auto model = relay_.Find(name_);
    const bool unknown = model == nullptr;
    if (unknown) model = Make(buffer);
    const IncomingNews news = version->news();
    model->SetIncoming(std::move(version));
    if (unknown) relay_.SetModel(name_, model);
    relay_.desk_.attachments().feed().SetIncoming(name_, news);
    // Receivers can attach to a relay that holds nothing itself yet.
    if (unknown) relay_.desk_.Announce(*model);
    return relay_.attachments().CountsOf(name_).attached > 0;
  }

  void EndIncoming() override {
    relay_.desk_.attachments().feed().SetIncoming(name_, {});
    if (const auto model = relay_.Find(name_); model != nullptr) model->SetIncoming(nullptr);
  }

  void ReportNews(const RelayNews& news) override {
    {
      std::lock_guard lock(mu_);
      const bool goes_on = !news.fetching.empty() &&
                           (news.applying || std::exchange(fetched_bytes_, news.fetched_bytes) !=
                                                 news.fetched_bytes);
      if (goes_on) expected_until_ = SteadyClock::now() + relay_.options_.pull_patience;
    }
    RelayNews ours = news;
    ours.path.push_back(relay_.options_.number);
    relay_.desk_.attachments().feed().SetRelay(name_, ours);
  }

  void DiscardModel() override {
    failed_ = false;  // the next one comes into another buffer
    Withdraw(absl::AbortedError("the model was replaced; describe it again"));
  }

  void MakeWay(ServedFile& file) override {
    if (file.Drain(relay_.options_.grace)) return;
    const auto model = relay_.Find(name_);
    const auto halves = model == nullptr ? std::vector<uint32_t>() : model->HalvesOf(file);
    for (const uint32_t half : halves) {
      relay_.desk_.CutReaders(*model, half, "so that the next version need not wait");
    }
    if (!file.Drain(kCutTimeout)) {
      LogWarn("model {}: pulls that were cut still read the weights", name_);
    }
  }

  /// Whether a model that is not served yet is likely to be soon.
  bool IsExpected() const {
    if (failed_) return false;
    std::lock_guard lock(mu_);
    return SteadyClock::now() < expected_until_;
  }

  void RecheckChunks(std::span<const uint32_t> chunks) override {
    const auto model = relay_.Find(name_);
    if (model == nullptr) return;
    for (const uint32_t chunk : chunks) model->Mark(chunk);
  }

 private:
  std::shared_ptr<RelayedModel> Make(const Buffer& buffer) const {
    return std::make_shared<RelayedModel>(
        name_, buffer, relay_.pool_, relay_.options_.delta_log_bytes,
        [on_corrupt = on_corrupt_, fingerprint = buffer.layout().fingerprint().Hex()](
            uint32_t chunk) { on_corrupt(fingerprint, chunk); });
  }

  void Withdraw(const Status& why) {
    const auto model = relay_.Find(name_);
    if (model == nullptr) return;
    relay_.SetModel(name_, nullptr);
    relay_.desk_.attachments().feed().Forget(name_);
    relay_.desk_.CutAll(*model, why);
  }

  Relay& relay_;
  const std::string name_;
  const OnCorrupt on_corrupt_;
  Status not_served_;                 // why the last state could not be served
  std::atomic<bool> failed_ = false;  // not_served_ is an error
  mutable Mutex mu_;
  SteadyClock::time_point expected_until_;
  uint64_t fetched_bytes_ = 0;  // in the last report
};

Relay::Relay(const Options& options, ThreadPool& pool, CoderRates& rates)
    : options_(options),
      pool_(pool),
      desk_({.codec = std::nullopt,
             .grace = options.grace,
             .rate_limit_per_receiver = options.rate_limit_per_receiver,
             .rate_limit_per_site = options.rate_limit_per_site,
             .stages = options.stages,
             .in_order = true},
            {}, rates) {}

Relay::~Relay() {
  Stop();
  desk_.Close();
}

Downstream* Relay::Of(const std::string& model, Channel::OnCorrupt on_corrupt) {
  auto& channel = channels_[model];
  channel = std::make_unique<Channel>(*this, model, std::move(on_corrupt));
  return channel.get();
}

void Relay::SetModel(const std::string& name, std::shared_ptr<RelayedModel> model) {
  std::lock_guard lock(mu_);
  models_[name].swap(model);
}

std::shared_ptr<RelayedModel> Relay::Find(const std::string& name) const {
  std::lock_guard lock(mu_);
  const auto known = models_.find(name);
  return known == models_.end() ? nullptr : known->second;
}

StatusOr<std::shared_ptr<StateSource>> Relay::Source(const std::string& name) const {
  auto model = Find(name);
  if (model != nullptr && (model->published() != nullptr || model->incoming() != nullptr)) {
    return std::static_pointer_cast<StateSource>(std::move(model));
  }
  if (const auto channel = channels_.find(name); channel != channels_.end()) {
    if (channel->second->IsExpected()) {
      return Errorf(StatusCode::kAborted, "this relay is fetching model \"{}\" itself; ask again",
                    name);
    }
    return Errorf(StatusCode::kNotFound, "this relay holds no whole version of model \"{}\" yet",
                  name);
  }
  return Errorf(StatusCode::kNotFound,
                "this relay does not keep model \"{}\"; name it with --model there", name);
}

StatusOr<PullTicket> Relay::OpenPull(const PullRequest& request, const PullCaller& caller) {
  DW_ASSIGN_OR_RETURN(const std::shared_ptr<StateSource> source, Source(request.model));
  const auto model = Find(request.model);
  return desk_.Open(request, caller, source, model == nullptr ? nullptr : model->incoming(),
                    [&] { return Find(request.model).get() == source.get(); });
}

Relay::Served Relay::ServedOf(const std::string& name) const {
  Served served;
  served.pulls = desk_.CountsOf(name);
  served.receivers = desk_.attachments().CountsOf(name).attached;
  if (const auto model = Find(name); model != nullptr) {
    served.log_bytes = model->store().log_bytes();
    served.encoded = model->store().encoded();
    served.early_encoded = model->early_encoded();
  }
  return served;
}

void Relay::Stop() { desk_.Stop(Stopping("relay")); }

}  // namespace deltawire::receiver
