// An upstream that does what a test tells it, at once and on the test's thread: for what stands
// between a replica and its upstreams. No thread, no socket. Owner: whoever it is handed to; the
// test keeps a pointer. Threads: any. Cost: none. Errors: those that the test sets.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "receiver/attach/upstream.h"
#include "tests/unit/receiver/attach/fake_upstream.h"

namespace deltawire::receiver {

class ScriptedUpstream : public Upstream {
 public:
  struct Counts {
    int attaches = 0, describes = 0, newest = 0, opens = 0;
  };
  explicit ScriptedUpstream(std::string address) : address_(std::move(address)) {}
  ~ScriptedUpstream() override { Detach(); }

  // What the test tells it.
  void Has(const Identity& newest) {
    std::lock_guard lock(mu_);
    newest_ = newest;
  }
  void Refuse(const Status& status) {
    std::lock_guard lock(mu_);
    refusal_ = status;
  }
  void OnAttach(std::function<void()> hook) {
    std::lock_guard lock(mu_);
    on_attach_ = std::move(hook);
  }
  void OnNewest(std::function<void()> hook) {
    std::lock_guard lock(mu_);
    on_newest_ = std::move(hook);
  }
  /// An event of the attachment, if there is one.
  void Tell(const RelayNews& relay = {}) { Tell(SenderEvent{.relay = relay}); }
  /// The same, of which only the number and the newest state are filled in.
  void Tell(SenderEvent e) {
    std::function<void(const SenderEvent&)> event;
    {
      std::lock_guard lock(mu_);
      event = event_;
      e.number = ++number_;
      e.newest.identity = newest_;
    }
    if (event) event(e);
  }
  void End(const Status& why) {
    std::function<void(const Status&)> ended;
    {
      std::lock_guard lock(mu_);
      ended = std::exchange(ended_, nullptr);
      event_ = nullptr;
    }
    if (ended) ended(why);
  }
  bool attached() const {
    std::lock_guard lock(mu_);
    return ended_ != nullptr;
  }
  Counts counts() const {
    std::lock_guard lock(mu_);
    return counts_;
  }

  const std::string& address() const override { return address_; }
  StatusOr<ModelDescription> Describe(const std::string&) override {
    std::lock_guard lock(mu_);
    ++counts_.describes;
    DW_RETURN_IF_ERROR(refusal_);
    return ModelDescription{.layout = FakeLayout(), .lineage = newest_.lineage};
  }
  StatusOr<Identity> Newest(const std::string&) override {
    std::function<void()> hook;
    {
      std::lock_guard lock(mu_);
      hook = on_newest_;
    }
    if (hook) hook();
    std::lock_guard lock(mu_);
    ++counts_.newest;
    DW_RETURN_IF_ERROR(refusal_);
    return newest_;
  }
  StatusOr<std::vector<SideFile>> SideFiles(const std::string&, uint64_t) override {
    return std::vector<SideFile>();
  }
  StatusOr<PullGrant> OpenPull(const PullRequest&) override {
    std::lock_guard lock(mu_);
    ++counts_.opens;
    DW_RETURN_IF_ERROR(refusal_);
    return PullGrant{.host = address_, .port = 1};
  }
  Status Attach(const std::string&, const ReceiverReport&,
                std::function<void(const SenderEvent&)> event,
                std::function<void(const Status&)> ended) override {
    Detach();
    std::function<void()> hook;
    {
      std::lock_guard lock(mu_);
      ++counts_.attaches;
      DW_RETURN_IF_ERROR(refusal_);
      hook = on_attach_;
    }
    if (hook) hook();
    std::lock_guard lock(mu_);
    number_ = 0;
    event_ = std::move(event);
    ended_ = std::move(ended);
    return absl::OkStatus();
  }
  void Send(const ReceiverReport& report) override {
    std::lock_guard lock(mu_);
    reports_.push_back(report);
  }
  std::vector<ReceiverReport> reports() const {
    std::lock_guard lock(mu_);
    return reports_;
  }
  void Detach() override { End(absl::CancelledError("detached")); }
  void Cancel() override {}

 private:
  const std::string address_;
  mutable std::mutex mu_;
  Identity newest_;
  Status refusal_;
  std::function<void()> on_attach_, on_newest_;
  std::function<void(const SenderEvent&)> event_;
  std::function<void(const Status&)> ended_;
  uint64_t number_ = 0;
  Counts counts_;
  std::vector<ReceiverReport> reports_;
};

}  // namespace deltawire::receiver
