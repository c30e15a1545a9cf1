// What a relay serves of one replica: states, the files that they are read from, deltas, and how it
// comes through side files that cannot be read and files that are being changed.
#include <catch2/catch.hpp>

#include "common/serving/chunk_bytes.h"
#include "receiver/relay/relay.h"
#include "tests/support/bad_memory.h"
#include "tests/support/next_event.h"
#include "tests/unit/receiver/buffer/buffer_rig.h"

namespace deltawire::receiver::relayed_model_test {
namespace {

using std::chrono::milliseconds;

/// A buffer of one file, and what is served of it.
struct Served {
  explicit Served(uint32_t buffers = 1) : rig({.buffers = buffers, .huge_pages = false}) {
    REQUIRE(rig.Update(1) == absl::OkStatus());
    model = std::make_shared<RelayedModel>("m", *rig.buffer, pool, 1 << 20, [](uint32_t) {});
    REQUIRE(Install() == absl::OkStatus());
  }
  Status Install(std::shared_ptr<const Delta> delta = nullptr, const Identity& from = {}) {
    return model->Install(*rig.buffer, rig.buffer->Serve(), std::move(delta), from);
  }
  Identity At(uint64_t version) const { return BufferRig::At(*rig.buffer, version); }

  BufferRig rig;
  ThreadPool pool{1};
  std::shared_ptr<RelayedModel> model;
};

std::shared_ptr<const Delta> DeltaOf(StateId from, StateId to) {
  DeltaBuilder builder(1 << 20);
  builder.Add({.chunk = 0, .digest_before = 1, .digest_after = 2}, {});
  return builder.Finish(from, to);
}

}  // namespace

TEST_CASE("relayed model: what is served already stays one state, unless a chunk of it was lost") {
  Served s;
  const auto first = s.model->published();
  REQUIRE(first->info.identity == s.At(1));
  for (int i = 0; i < 3; ++i) REQUIRE(s.Install() == absl::OkStatus());
  CHECK(s.model->published() == first);
  CHECK(s.model->HalvesOf(*s.rig.buffer->Serve()) == std::vector<uint32_t>{first->half});
  testing::Flip(s.rig.weights(), s.rig.buffer->layout(), 10);
  CHECK(s.model->Mark(0));
  testing::Flip(s.rig.weights(), s.rig.buffer->layout(), 10);
  REQUIRE(s.Install() == absl::OkStatus());
  const auto again = s.model->published();
  CHECK(again != first);
  CHECK(again->damaged[0] == 0);
  // Pulls may read the file under either number, and an update must find them all.
  CHECK(s.model->HalvesOf(*s.rig.buffer->Serve()) ==
        std::vector<uint32_t>{first->half, again->half});
}

TEST_CASE("relayed model: an update that was broken off has no part in what is served") {
  Served s(2);
  {
    Buffer& b = *s.rig.buffer;
    REQUIRE(*b.update().Begin());
    BufferRig::Bring(b, 0, 2);
  }
  s.rig.Restart();
  REQUIRE(s.rig.buffer->update().interrupted());
  REQUIRE(s.rig.buffer->bases().digest(0) == BufferRig::DigestOf(*s.rig.buffer, 0, 2));
  s.model = std::make_shared<RelayedModel>("m", *s.rig.buffer, s.pool, 1 << 20, [](uint32_t) {});
  REQUIRE(s.Install() == absl::OkStatus());
  const auto state = s.model->published();
  REQUIRE(state->info.identity == s.At(1));
  uint64_t root = 0;
  for (uint32_t i = 0; i < kChunks; ++i) root += RootTerm(i, (*state->digests)[i]);
  CHECK(root == state->info.identity.root);
}

TEST_CASE("relayed model: a delta is served on from the state that it leads from and no other") {
  Served s(2);
  const Identity one = s.At(1);
  REQUIRE(s.rig.Update(2) == absl::OkStatus());
  Identity other = one;
  other.root ^= 1;  // the same number with other bytes
  REQUIRE(s.Install(DeltaOf(one.id, s.At(2).id), other) == absl::OkStatus());
  CHECK(s.model->published()->log.empty());
  REQUIRE(s.rig.Update(3) == absl::OkStatus());
  REQUIRE(s.Install(DeltaOf(s.At(2).id, s.At(3).id), s.At(2)) == absl::OkStatus());
  CHECK(s.model->published()->log.size() == 1);
}

TEST_CASE(
    "relayed model: payloads of a version that came are kept as they came for late receivers") {
  using kernels::Codec;
  Served s(2);
  REQUIRE(s.rig.Update(2) == absl::OkStatus());
  const std::byte payload[] = {std::byte{1}};
  DeltaBuilder builder(1 << 20);
  builder.Add({.chunk = 0, .digest_before = 1, .digest_after = 2}, payload);
  REQUIRE(s.Install(builder.Finish(s.At(1).id, s.At(2).id), s.At(1)) == absl::OkStatus());
  const auto state = s.model->published();
  const ChunkDelta* delta = state->log.back()->Find(0);
  REQUIRE(delta != nullptr);
  wire::Have base;
  base.chunks.resize(s.model->chunks().size());
  const auto came = [&](Codec codec, uint64_t digest_after) {
    IncomingVersion incoming(s.At(2), base, 1 << 20);
    const auto bytes = std::make_shared<std::byte[]>(4);
    bytes[0] = std::byte{kernels::kFormat};
    bytes[1] = static_cast<std::byte>(kernels::FormOf(codec));
    IncomingVersion::Piece piece;
    piece.header.chunk = 0;
    piece.header.payload_bytes = 4;
    piece.header.digest_before = 1;
    piece.header.digest_after = digest_after;
    piece.header.payload_xxh3 = 77;
    piece.payload = bytes;
    incoming.Add(piece);
    s.model->KeepPayloads(incoming);
  };
  came(Codec::kDense, 3);  // a delta to other bytes than the log's
  came(Codec::kFast, 2);   // the log has it
  CHECK_FALSE(state->encoded->has_foreign());
  came(Codec::kDense, 2);
  CHECK(state->encoded->has_foreign());
  const auto kept = state->encoded->Get(
      {delta, Codec::kDense}, [] { return nullptr; }, EncodedCache::IfBusy::kSkip);
  REQUIRE(kept.value != nullptr);
  CHECK(kept.value->xxh3 == 77);
  CHECK(kept.value->bytes.size() == 4);
}

TEST_CASE("relayed model: a chunk of a file that is being changed is to be asked for again") {
  Served s;
  ChunkBytes bytes(*s.model);
  const auto state = s.model->published();
  REQUIRE(bytes.Get(0, s.model->Lease(), {}).ok());
  REQUIRE(*s.rig.buffer->update().Begin());
  // kAborted: the receiver tries again here, and does not look for another upstream.
  const auto changed = bytes.Get(0, {state, nullptr}, {});
  INFO(changed.status());
  CHECK(absl::IsAborted(changed.status()));
}

TEST_CASE("relayed model: a chunk that was lost is said to be fetched anew by the relay") {
  Served s;
  testing::Flip(s.rig.weights(), s.rig.buffer->layout(), 10);
  REQUIRE(s.model->Mark(0));
  ChunkBytes bytes(*s.model);
  const auto lost = bytes.Get(0, s.model->Lease(), {});
  CHECK(absl::IsDataLoss(lost.status()));
  CHECK(MessageOf(lost.status()).find("until this relay has fetched it anew") !=
        std::string_view::npos);
}

TEST_CASE("relay: a version whose side files cannot be read is served when they can be") {
  BufferRig rig({.buffers = 2, .huge_pages = false});
  ThreadPool pool(1);
  CoderRates rates;
  Relay relay({.number = 9, .start_patience = std::chrono::milliseconds(0)}, pool, rates);
  Downstream& channel = *relay.Of("m", [](const std::string&, uint32_t) {});
  REQUIRE(rig.Update(1, {{"config.json", "{}"}}) == absl::OkStatus());
  const fs::path kept = rig.dir.path() / ".deltawire.receiver", away = rig.dir.path() / ".away";
  fs::rename(kept, away);
  CHECK_FALSE(channel.ServeCommitted(*rig.buffer, rig.buffer->Serve(), nullptr, {}));
  CHECK(absl::IsNotFound(relay.Source("m").status()));
  fs::rename(away, kept);
  CHECK(channel.ServeCommitted(*rig.buffer, rig.buffer->Serve(), nullptr, {}));
  const auto source = relay.Source("m");
  REQUIRE(source.ok());
  CHECK((*source)->published()->info.identity == BufferRig::At(*rig.buffer, 1));
}

TEST_CASE("relay: what a commit brings is served though what was kept of its side files was lost") {
  BufferRig rig({.buffers = 2, .huge_pages = false});
  ThreadPool pool(1);
  CoderRates rates;
  Relay relay({.start_patience = std::chrono::hours(1)}, pool, rates);
  Downstream& channel = *relay.Of("m", [](const std::string&, uint32_t) {});
  const std::vector<SideFile> files = {{"config.json", "{}"}, {"vocab.txt", "a b"}};
  const auto commit = [&](uint64_t version) {
    REQUIRE(rig.Update(version, files) == absl::OkStatus());
    return channel.ServeCommitted(*rig.buffer, rig.buffer->Serve(), nullptr, {});
  };
  const auto lose = [&] {
    for (const auto& entry : fs::directory_iterator(rig.dir.path() / ".deltawire.receiver")) {
      if (entry.path().filename().native().size() == 16) fs::remove(entry.path());  // by its hash
    }
  };
  REQUIRE(commit(1));
  lose();
  CHECK(commit(2));
  CHECK((*relay.Source("m"))->published()->info.id().version == 2);
  fs::remove_all(rig.dir.path() / ".deltawire.receiver");
  CHECK(commit(3));
  CHECK((*relay.Source("m"))->published()->info.id().version == 3);
}

TEST_CASE("relay: a relay that cannot serve what it commits sends those who follow it elsewhere") {
  BufferRig rig({.buffers = 2, .huge_pages = false});
  ThreadPool pool(1);
  CoderRates rates;
  Relay relay({.start_patience = std::chrono::hours(1), .pull_patience = std::chrono::hours(1)},
              pool, rates);
  Downstream& channel = *relay.Of("m", [](const std::string&, uint32_t) {});
  const fs::path kept = rig.dir.path() / ".deltawire.receiver", away = rig.dir.path() / ".away";
  const auto tell = [&] {
    return channel.ServeCommitted(*rig.buffer, rig.buffer->Serve(), nullptr, {});
  };
  REQUIRE(rig.Update(1, {{"config.json", "{}"}}) == absl::OkStatus());
  CHECK(absl::IsAborted(relay.Source("m").status()));  // it has only just started
  fs::rename(kept, away);
  CHECK_FALSE(tell());
  CHECK(absl::IsNotFound(relay.Source("m").status()));  // and not "ask again", for ever
  fs::rename(away, kept);
  REQUIRE(tell());
  REQUIRE(rig.Update(2, {{"config.json", "[]"}}) == absl::OkStatus());
  fs::rename(kept, away);
  CHECK_FALSE(tell());
  CHECK(relay.Source("m").ok());  // the version before, since this may pass
  CHECK_FALSE(tell());
  CHECK(absl::IsNotFound(relay.Source("m").status()));
  fs::rename(away, kept);
  REQUIRE(tell());
  CHECK((*relay.Source("m"))->published()->info.id().version == 2);
}

TEST_CASE(
    "relay: whoever asks for a model whose first pull goes on is to ask again, else elsewhere") {
  BufferRig rig({.buffers = 2, .huge_pages = false});
  ThreadPool pool(1);
  CoderRates rates;
  using std::chrono::hours, std::chrono::milliseconds;
  Relay starts({.start_patience = hours(1)}, pool, rates);
  starts.Of("m", [](const std::string&, uint32_t) {});
  CHECK(absl::IsAborted(starts.Source("m").status()));
  CHECK(absl::IsNotFound(starts.Source("other").status()));

  Relay relay({.start_patience = milliseconds(0), .pull_patience = hours(1)}, pool, rates);
  Downstream& channel = *relay.Of("m", [](const std::string&, uint32_t) {});
  CHECK(absl::IsNotFound(relay.Source("m").status()));
  const Identity target = BufferRig::At(*rig.buffer, 1);
  channel.ReportNews({.fetching = target});  // it has begun, and nothing has come
  CHECK(absl::IsNotFound(relay.Source("m").status()));
  channel.ReportNews({.fetching = target, .fetched_bytes = 3});
  CHECK(absl::IsAborted(relay.Source("m").status()));

  Relay hasty({.start_patience = milliseconds(0), .pull_patience = milliseconds(0)}, pool, rates);
  Downstream& stuck = *hasty.Of("m", [](const std::string&, uint32_t) {});
  stuck.ReportNews({.fetching = target, .fetched_bytes = 3});
  CHECK(absl::IsNotFound(hasty.Source("m").status()));
}

TEST_CASE("relay: those who are served hear of an older version that was taken on purpose") {
  BufferRig rig({.buffers = 2, .huge_pages = false});
  ThreadPool pool(1);
  CoderRates rates;
  Relay relay({.number = 9}, pool, rates);
  Downstream& channel = *relay.Of("m", [](const std::string&, uint32_t) {});
  const auto commit = [&](uint64_t version) {
    REQUIRE(rig.Update(version) == absl::OkStatus());
    REQUIRE(channel.ServeCommitted(*rig.buffer, rig.buffer->Serve(), nullptr, {}));
  };
  commit(5);
  channel.ReportNews({.fetching = BufferRig::At(*rig.buffer, 6), .fetched_bytes = 3, .path = {4}});
  const auto token = relay.attachments().Attach("m", "leaf", "peer");
  REQUIRE(token.ok());
  const auto first = testing::NextEvent(relay.attachments(), *token);
  REQUIRE(first.ok());
  CHECK(first->newest.identity.id.version == 5);
  CHECK(first->relay.fetched_bytes == 3);
  CHECK(first->relay.path == std::vector<uint64_t>{4, 9});
  commit(4);
  const auto second = testing::NextEvent(relay.attachments(), *token);
  REQUIRE(second.ok());
  CHECK(second->newest.identity.id.version == 4);
}

}  // namespace deltawire::receiver::relayed_model_test
