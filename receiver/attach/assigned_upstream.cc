#include "receiver/attach/assigned_upstream.h"

#include <algorithm>
#include <utility>

#include "receiver/attach/origin_link.h"

namespace deltawire::receiver {
namespace {

class AssignedUpstream : public Upstream {
 public:
  AssignedUpstream(std::unique_ptr<Upstream> sender, FailoverUpstream::Make make,
                   const AssignedOptions& options)
      : make_(std::move(make)),
        link_(std::move(sender), options.model, options.seed,
              [this](const Assignment& told) { Assigned(told); }),
        chain_(MakeFailoverUpstream(ViewAlone(), options.seed, options.relay, options.times)) {}

  ~AssignedUpstream() override {
    Cancel();
    link_.Stop();  // the link gives the chain its assignments, so it ends before the chain does
  }

  const std::string& address() const override { return link_.address(); }
  std::string in_use() const override { return chain_->in_use(); }
  std::optional<Identity> sender_newest() const override { return link_.KnownNewest(); }
  double round_trip() const override { return chain_->round_trip(); }
  StatusOr<ModelDescription> Describe(const std::string& model) override {
    return chain_->Describe(model);
  }
  StatusOr<Identity> Newest(const std::string& model) override { return chain_->Newest(model); }
  StatusOr<std::vector<SideFile>> SideFiles(const std::string& model, uint64_t hash) override {
    return chain_->SideFiles(model, hash);
  }
  StatusOr<PullGrant> OpenPull(const PullRequest& request) override {
    return chain_->OpenPull(request);
  }
  void NotePullEnd(const Status& status) override { chain_->NotePullEnd(status); }

  Status Attach(const std::string& model, const ReceiverReport& first,
                std::function<void(const SenderEvent&)> event,
                std::function<void(const Status&)> ended) override {
    const Status attached = chain_->Attach(
        model, first,
        [this, event = std::move(event)](SenderEvent e) {
          link_.AddRequest(e);
          event(e);
        },
        [this, ended = std::move(ended)](const Status& why) {
          link_.RenewRequests();
          ended(why);
        });
    TellSender(first);
    return attached;
  }
  void Send(const ReceiverReport& report) override {
    chain_->Send(report);
    TellSender(report);
  }
  void Detach() override { chain_->Detach(); }
  void Cancel() override {
    chain_->Cancel();
    link_.Cancel();
  }

 private:
  std::vector<std::unique_ptr<Upstream>> ViewAlone() {
    std::vector<std::unique_ptr<Upstream>> alone;
    alone.push_back(link_.View());
    return alone;
  }

  void TellSender(ReceiverReport report) {
    const std::string in_use = chain_->in_use();
    if (in_use != address()) report.follows = in_use;
    link_.Report(report);
  }

  // Called by the link, which attaches only after the first report: chain_ has been made by then.
  void Assigned(const Assignment& told) {
    std::vector<std::string> addresses;
    for (const std::string& upstream : told.upstreams) {
      const bool twice = std::ranges::find(addresses, upstream) != addresses.end();
      if (!twice && upstream != address()) addresses.push_back(upstream);
    }
    addresses.push_back(address());
    chain_->Prefer(addresses, make_);
  }

  const FailoverUpstream::Make make_;
  OriginLink link_;
  const std::unique_ptr<FailoverUpstream> chain_;  // reaches the sender by a view of link_
};

}  // namespace

std::unique_ptr<Upstream> MakeAssignedUpstream(std::unique_ptr<Upstream> sender,
                                               FailoverUpstream::Make make,
                                               const AssignedOptions& options) {
  return std::make_unique<AssignedUpstream>(std::move(sender), std::move(make), options);
}

}  // namespace deltawire::receiver
