// A sender's model in a directory of its own, and a trainer that writes to it. The tests of Model
// share it. No sockets. Owner: one test case.
#pragma once

#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "common/base/thread_pool.h"
#include "sender/agent/model.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/sender/offload/offload_waits.h"

namespace deltawire::sender {

/// Tensors of one chunk and of several, and a scalar.
inline Layout TestLayout() {
  return *Layout::Create({{"big", DType::kI8, {(2 << 20) + 1000}},
                          {"small", DType::kBF16, {500}},
                          {"scalar", DType::kF32, {1}}});
}

/// Tests damage bytes and look before a scrub would, so the scrub is off unless its rate is set.
inline SenderOptions WithoutScrub(SenderOptions options) {
  if (options.scrub_bytes_per_s == SenderOptions{}.scrub_bytes_per_s) options.scrub_bytes_per_s = 0;
  return options;
}

inline bool NeverGone() { return false; }

class SenderModel {
 public:
  explicit SenderModel(SenderOptions options = {}, std::vector<ChunkRange> owned = {},
                       std::vector<SideFile> side_files = {}, size_t threads = 2,
                       const StageObserver& stages = {})
      : pool_(threads), options_(WithoutScrub(std::move(options))) {
    const Layout layout = TestLayout();
    auto model = Model::Create("m", dir_.path() / "m", layout,
                               *Coverage::Create(owned, ChunkTable::Create(layout)->size()),
                               std::move(side_files), options_, pool_, stages);
    REQUIRE(model.ok());
    model_ = *model;
  }
  Model* operator->() { return model_.get(); }
  ThreadPool& pool() { return pool_; }

  void Restart() {
    model_.reset();
    auto model = Model::Recover("m", dir_.path() / "m", options_, pool_);
    INFO(model.status());
    REQUIRE(model.ok());
    model_ = *model;
  }

  StatusOr<OffloadGrant> Begin(uint64_t version, const std::string& publisher = "test",
                               uint64_t attempt = 0, uint64_t client = 0) {
    auto grant = model_->offloads().Begin({version, 0, 1, attempt, publisher, client}, NeverGone);
    if (grant.ok()) REQUIRE(model_->offloads().Attend(grant->lease, 0).ok());
    return grant;
  }
  /// Writes to the granted half, as a trainer does through its mapping.
  void Write(const OffloadGrant& grant, uint64_t offset, const std::vector<std::byte>& bytes) {
    std::fstream file(grant.half_path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(grant.data_offset + offset));
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    REQUIRE(file.good());
  }
  StatusOr<bool> Ready(const OffloadGrant& grant, uint64_t version) {
    return model_->offloads().MarkReady({version, 0, 1, grant.lease, true, {}, {}});
  }

  /// The bytes of a version. One byte of "small" and of each chunk of "big" is its number, "scalar"
  /// changes wholly, and all others are 0.
  static std::vector<std::byte> Content(uint64_t version) {
    const Layout layout = TestLayout();
    std::vector<std::byte> bytes(layout.total_bytes(), std::byte{0});
    bytes[0] = bytes[2 << 20] = bytes[layout.offset(1)] = static_cast<std::byte>(version);
    const auto scalar = static_cast<float>(version) * 1.7f;
    std::memcpy(bytes.data() + layout.offset(2), &scalar, sizeof scalar);
    return bytes;
  }
  StatusOr<VersionInfo> Publish(uint64_t version, uint64_t attempt = 0) {
    DW_ASSIGN_OR_RETURN(const OffloadGrant grant, Begin(version, "test", attempt));
    Write(grant, 0, Content(version));
    DW_RETURN_IF_ERROR(Ready(grant, version).status());
    return WaitPublished(model_->offloads(), version, grant.lease, NeverGone);
  }
  bool Holds(uint64_t version) {
    const LeasedState leased = model_->Lease();
    const Bytes bytes = model_->half(leased.state->half);
    const std::vector<std::byte> expected = Content(version);
    return std::memcmp(bytes.data(), expected.data(), expected.size()) == 0;
  }

 private:
  TempDir dir_;
  ThreadPool pool_;
  SenderOptions options_;
  std::shared_ptr<Model> model_;
};

}  // namespace deltawire::sender
