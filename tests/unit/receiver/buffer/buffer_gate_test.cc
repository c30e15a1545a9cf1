// The gate between engines that hold a version and updates that change it, on real files.
#include "receiver/buffer/buffer_gate.h"

#include <catch2/catch.hpp>
#include <cstdio>
#include <new>

#include "tests/unit/receiver/buffer/buffer_rig.h"

namespace deltawire::receiver::buffer_gate_test {
namespace {

using Limit = BufferGate::Limit;
using Refusal = BufferGate::Refusal;

struct Setup : BufferRig {
  explicit Setup(uint32_t buffers = 1) : BufferRig({.buffers = buffers, .huge_pages = false}) {
    REQUIRE(Update(1).ok());
    gate.version().TakeUp(*buffer);
  }
  Identity one() const { return At(*buffer, 1); }

  int news = 0;
  BufferGate gate{{.model = "m"}, [this] { ++news; }};
};

/// A server of the committed file that runs out of memory while it makes way for an update.
class OutOfMemory : public Downstream {
 public:
  bool ServeCommitted(const Buffer&, std::shared_ptr<ServedFile>, std::shared_ptr<const Delta>,
                      const Identity&) override {
    return true;
  }
  bool ServeIncoming(const Buffer&, std::shared_ptr<IncomingVersion>) override { return false; }
  void EndIncoming() override {}
  void ReportNews(const RelayNews&) override {}
  void DiscardModel() override {}
  void MakeWay(ServedFile& file) override {
    (void)file.Drain(std::chrono::milliseconds(0));
    throw std::bad_alloc();
  }
  void RecheckChunks(std::span<const uint32_t>) override {}
};

}  // namespace

TEST_CASE("gate: an update of the only file waits for an engine that holds it") {
  Setup s;
  CHECK(s.gate.version().Ready() == s.one());
  CHECK_FALSE(s.gate.Hold(BufferRig::At(*s.buffer, 2), "engine"));
  REQUIRE(s.gate.Hold(s.one(), "engine"));
  CHECK(absl::IsUnavailable(s.gate.Touch(*s.buffer)));
  CHECK(s.gate.refusal() == Refusal::kReader);
  CHECK(s.gate.version().committed() == s.one());
  // A wait yields at once where it may, and tells of itself.
  s.gate.SetYielding(true);
  CHECK(absl::IsCancelled(s.gate.WaitWritable(*s.buffer)));
  CHECK(s.news == 1);
  CHECK(absl::IsCancelled(s.gate.BeginChange()));
  CHECK_FALSE(s.gate.waits().waiting);
  CHECK(s.gate.waits().readers.empty());
  s.gate.Release("engine");
  s.gate.SetLimit(Limit::kNone);
  CHECK(s.gate.Touch(*s.buffer).ok());
  CHECK(s.gate.refusal() == Refusal::kNone);
  CHECK(s.gate.version().committed().empty());
  CHECK(s.gate.version().half_updated());
  CHECK_FALSE(s.gate.Hold(s.one(), "engine"));
}

TEST_CASE("gate: a hold ends at its time, and none begins while a change runs") {
  Setup s;
  REQUIRE(s.gate.Hold(s.one(), "late", SteadyClock::now()));
  REQUIRE(s.gate.BeginChange().ok());
  CHECK_FALSE(s.gate.Hold(s.one(), "engine"));
  s.gate.EndChange(*s.buffer);
  CHECK(s.gate.Hold(s.one(), "engine"));
}

TEST_CASE("gate: what is prepared changes nothing that a reader sees") {
  Setup one(1), two(2);
  one.gate.SetLimit(Limit::kPrepare);
  CHECK(absl::IsFailedPrecondition(one.gate.Touch(*one.buffer)));
  CHECK(one.gate.refusal() == Refusal::kCannotPrepare);
  two.gate.SetLimit(Limit::kPrepare);
  CHECK(two.gate.Touch(*two.buffer).ok());
  CHECK(two.gate.version().committed() == two.one());
}

TEST_CASE("gate: the only file keeps its name until the version is published") {
  Setup s;
  s.gate.SetLimit(Limit::kKeepName);
  CHECK(absl::IsAborted(s.gate.Touch(*s.buffer)));
  s.gate.EndKeepName();
  CHECK(s.gate.Touch(*s.buffer).ok());
}

TEST_CASE("gate: a served file gives out leases again after an update that did not begin") {
  Setup s;
  if (!s.buffer->lease_problem().empty()) return (void)std::puts("SKIPPED: no leases here");
  OutOfMemory downstream;
  BufferGate gate({.model = "m", .downstream = &downstream});
  gate.version().TakeUp(*s.buffer);
  const auto served = s.buffer->Serve();
  const auto lease = served->Lease();
  CHECK_THROWS_AS(gate.Touch(*s.buffer), std::bad_alloc);
  CHECK(served->Lease() != nullptr);
  CHECK(gate.Hold(s.one(), "engine"));
}

TEST_CASE("gate: engines are told of a version once it is ready") {
  Setup s;
  int told = 0;
  s.gate.version().OnReady([&] { ++told; });
  CHECK(told == 1);
  REQUIRE(s.Update(2).ok());
  s.gate.version().NoteBuffer(*s.buffer);
  CHECK(s.gate.version().Ready() == s.one());
  s.gate.version().MakeReady();
  CHECK(told == 2);
  CHECK(s.gate.version().Ready() == BufferRig::At(*s.buffer, 2));
  s.gate.version().ForgetBuffer();
  CHECK(s.gate.version().Ready().empty());
}

}  // namespace deltawire::receiver::buffer_gate_test
