#include "receiver/relay/relay.h"

#include "common/base/call_end.h"
#include "common/base/log.h"

namespace deltawire::receiver {
namespace {

// A stream that is cut ends its frame within PullServer's cut_grace.
constexpr std::chrono::milliseconds kCutTimeout{2000};

}  // namespace

/// One replica's way to tell of its versions.
class Relay::Channel : public Downstream {
 public:
  using Doubt = std::function<void(const std::string& fingerprint, uint32_t chunk)>;
  Channel(Relay& relay, std::string model, Doubt doubt)
      : relay_(relay), name_(std::move(model)), doubt_(std::move(doubt)) {}

  void Committed(const Buffer& buffer, std::shared_ptr<ServedFile> file,
                 std::shared_ptr<const Delta> delta) override {
    auto model = relay_.Find(name_);
    const bool fresh = model == nullptr;
    if (fresh) {
      model = std::make_shared<RelayedModel>(
          name_, buffer, relay_.pool_, relay_.options_.delta_log_bytes,
          [doubt = doubt_, fingerprint = buffer.layout().fingerprint().Hex()](uint32_t chunk) {
            doubt(fingerprint, chunk);
          });
    }
    const Status installed = model->Install(buffer, std::move(file), std::move(delta));
    if (!installed.ok()) {
      LogWarn("model {}: {} is not served to other receivers: {}", name_,
              ToString(buffer.committed()), MessageOf(installed));
      return;
    }
    if (fresh) relay_.SetModel(name_, model);
    relay_.desk_.Changed(*model);
  }

  void Dropped() override {
    const auto model = relay_.Find(name_);
    if (model == nullptr) return;
    relay_.SetModel(name_, nullptr);
    relay_.desk_.attachments().Forget(name_);
    relay_.desk_.Drop(*model, absl::AbortedError("the model was replaced; describe it again"));
  }

  void MakeWay(ServedFile& file) override {
    if (file.Drain(relay_.options_.grace)) return;
    const auto model = relay_.Find(name_);
    const auto half = model == nullptr ? std::nullopt : model->HalfOf(file);
    if (half) relay_.desk_.CutReaders(*model, *half, "so that the next version need not wait");
    if (!file.Drain(kCutTimeout)) {
      LogWarn("model {}: pulls that were cut still read the weights", name_);
    }
  }

  void Distrusted(std::span<const uint32_t> chunks) override {
    const auto model = relay_.Find(name_);
    if (model == nullptr) return;
    for (const uint32_t chunk : chunks) model->Mark(chunk);
  }

 private:
  Relay& relay_;
  const std::string name_;
  const Doubt doubt_;
};

Relay::Relay(const Options& options, ThreadPool& pool, CoderRates& rates)
    : options_(options),
      pool_(pool),
      desk_({.codec = std::nullopt,
             .grace = options.grace,
             .rate_limit_per_receiver = options.rate_limit_per_receiver,
             .stages = options.stages},
            {}, rates) {}

Relay::~Relay() {
  Stop();
  desk_.Close();
}

Downstream* Relay::Of(const std::string& model, Channel::Doubt doubt) {
  auto& channel = channels_[model];
  channel = std::make_unique<Channel>(*this, model, std::move(doubt));
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
  if (auto model = Find(name); model != nullptr) {
    return std::static_pointer_cast<StateSource>(std::move(model));
  }
  if (channels_.contains(name)) {
    return Errorf(StatusCode::kNotFound, "this relay holds no whole version of model \"{}\" yet",
                  name);
  }
  return Errorf(StatusCode::kNotFound,
                "this relay does not keep model \"{}\"; name it with --model there", name);
}

StatusOr<PullTicket> Relay::OpenPull(const PullRequest& request) {
  DW_ASSIGN_OR_RETURN(const std::shared_ptr<StateSource> source, Source(request.model));
  auto ticket =
      desk_.Open(request, source, [&] { return Find(request.model).get() == source.get(); });
  if (!ticket.ok()) desk_.Refused(request.model);
  return ticket;
}

Relay::Served Relay::ServedOf(const std::string& name) const {
  Served served;
  served.pulls = desk_.CountsOf(name);
  served.receivers = desk_.attachments().Receivers(name).size();
  if (const auto model = Find(name); model != nullptr) served.log_bytes = model->log_bytes();
  return served;
}

void Relay::Stop() { desk_.Stop(Stopping("relay")); }

}  // namespace deltawire::receiver
