// Attach calls of peers that misbehave, over loopback: reports that are far too long, and calls
// without a report.
#include <grpcpp/grpcpp.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "proto/convert.h"
#include "proto/serving/pull_service.h"
#include "tests/support/eventually.h"

namespace deltawire::attach_test {
namespace {

using namespace std::chrono_literals;
using testing::Eventually;

/// Serves any model, of which nothing is published.
class EmptyHost final : public PullHost {
 public:
  explicit EmptyHost(const AttachmentLimits& limits) : attachments_(limits) {}
  StatusOr<std::shared_ptr<StateSource>> Source(const std::string&) const override {
    return std::shared_ptr<StateSource>();
  }
  StatusOr<PullTicket> OpenPull(const PullRequest&, const PullCaller&) override {
    return absl::UnimplementedError("not for this test");
  }
  Attachments& attachments() override { return attachments_; }
  const std::string& advertise_host() const override { return host_; }

 private:
  Attachments attachments_;
  const std::string host_;
};

class Rig {
 public:
  explicit Rig(const AttachmentLimits& limits) : host_(limits) {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(kMaxControlMessage);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    REQUIRE(port > 0);
    stub_ = v1::PullService::NewStub(
        grpc::CreateChannel(fmt::format("127.0.0.1:{}", port), grpc::InsecureChannelCredentials()));
  }
  ~Rig() {
    attachments().Stop(absl::CancelledError("the test is over"));
    server_->Shutdown(std::chrono::system_clock::now());
  }
  Attachments& attachments() { return host_.attachments(); }
  v1::PullService::Stub& stub() { return *stub_; }

 private:
  EmptyHost host_;
  PullServiceImpl service_{host_, Access::Open(), 1};
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::PullService::Stub> stub_;
};

/// One Attach call of a peer, which is cancelled at the latest by the destructor.
class Call {
 public:
  explicit Call(Rig& rig) : stream_(rig.stub().Attach(&context_)) {}
  ~Call() {
    if (over_) return;
    Cancel();
    (void)End();
  }
  void Cancel() { context_.TryCancel(); }
  bool Report(const std::string& id, const std::string& message = "", const std::string& site = "",
              const std::string& serve_address = "") {
    v1::ReceiverReport report;
    report.set_site(site);
    report.set_serve_address(serve_address);
    report.set_follows(serve_address);
    report.set_model("m");
    report.set_receiver_id(id);
    report.set_message(message);
    return stream_->Write(report);
  }
  /// Waits until the server ends the call.
  grpc::Status End() {
    over_ = true;
    v1::SenderEvent event;
    while (stream_->Read(&event)) continue;
    return stream_->Finish();
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ReceiverReport, v1::SenderEvent>> stream_;
  bool over_ = false;
};

constexpr AttachmentLimits kPatient{.beat = 20ms, .silence = std::chrono::hours(1)};

/// Bytes of large blocks, each of which the allocator gets from the kernel.
size_t LargeBlocks() { return mallinfo2().hblkhd; }

TEST_CASE("attach: of a report that is far too long nothing is kept but what a person can read") {
  constexpr size_t kLong = size_t{64} << 20;
  Rig rig(kPatient);
  Call call(rig);
  REQUIRE(call.Report("r"));
  REQUIRE(Eventually([&] { return rig.attachments().Receivers("m").size() == 1; }));
  const size_t before = LargeBlocks();
  std::string text = "a";
  while (text.size() < kLong) text += "\xc3\xa9";
  REQUIRE(call.Report("r", text));
  std::string().swap(text);
  const auto kept = [&] { return rig.attachments().Receivers("m")[0].report.message; };
  REQUIRE(Eventually([&] { return !kept().empty(); }));
  CHECK(kept().size() == kMaxReportMessage - 1);
  CHECK(Eventually([&] { return LargeBlocks() < before + kLong / 2; }, 5s));
  // The list of receivers can be read by everybody.
  v1::ListReceiversResponse list;
  list.add_receivers()->set_message(kept());
  CHECK(v1::ListReceiversResponse().ParseFromString(list.SerializeAsString()));
}

TEST_CASE("attach: a site and an address that are no short visible text are none") {
  Rig rig(kPatient);
  Call good(rig), spaces(rig), long_one(rig);
  REQUIRE(good.Report("a", "here", "west", "10.0.0.1:7710"));
  REQUIRE(spaces.Report("b", "here", "we st\n", "10.0.0.1:7710\t"));
  REQUIRE(long_one.Report("c", "here", std::string(kMaxSiteName + 1, 'w'),
                          std::string(kMaxServeAddress + 1, 'a')));
  std::vector<ReceiverView> all;
  REQUIRE(Eventually([&] {
    all = rig.attachments().Receivers("m");
    // A receiver is attached before its report is there.
    return all.size() == 3 && std::ranges::all_of(all, [](const ReceiverView& view) {
             return view.report.message == "here";
           });
  }));
  std::ranges::sort(all, {}, &ReceiverView::id);
  CHECK(all[0].offer == SiteOffer{.site = "west", .address = "10.0.0.1:7710"});
  CHECK(all[0].report.follows == "10.0.0.1:7710");
  for (size_t i = 1; i < 3; ++i) {
    CHECK(all[i].offer == SiteOffer{});
    CHECK(all[i].report.follows.empty());
  }
}

TEST_CASE("attach: a call without a report ends when a silence may last no longer") {
  Rig rig({.beat = 20ms, .silence = 200ms});
  Call call(rig);
  const grpc::Status end = call.End();
  CHECK(end.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
  CHECK(end.error_message().find("no report has come for 200 ms") != std::string::npos);
  CHECK(rig.attachments().Receivers("m").empty());
}

TEST_CASE("attach: calls without a report have the limit of attached receivers") {
  AttachmentLimits limits = kPatient;
  limits.most = 2;
  Rig rig(limits);
  std::deque<Call> calls;
  for (int i = 0; i < 3; ++i) calls.emplace_back(rig);
  std::atomic<int> refused{0};
  std::vector<std::thread> waiters;
  for (Call& call : calls) {
    waiters.emplace_back([&] {
      refused += call.End().error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED ? 1 : 0;
    });
  }
  CHECK(Eventually([&] { return refused == 1; }));
  for (Call& call : calls) call.Cancel();
  for (std::thread& waiter : waiters) waiter.join();
  CHECK(refused == 1);
  // Calls that are over make place, as soon as the server has seen their end.
  std::optional<Call> next;
  CHECK(Eventually([&] {
    next.emplace(rig);
    (void)next->Report("r");
    return Eventually([&] { return rig.attachments().Receivers("m").size() == 1; }, 500ms);
  }));
}

}  // namespace
}  // namespace deltawire::attach_test
