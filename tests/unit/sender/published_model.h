// A sender's model in a directory of its own, and a trainer that publishes to it by hand. Owner:
// the test case. Content is random, and each publish changes some of it. Every version's bytes are
// kept, so that what a pull brought can be compared. Not thread-safe.
#pragma once

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "common/base/thread_pool.h"
#include "sender/agent/model.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/sender/offload/offload_waits.h"

namespace deltawire::sender::test {

class PublishedModel {
 public:
  /// Makes a model of `tensors` tensors; each is one chunk of 8 KiB.
  explicit PublishedModel(uint32_t tensors, uint64_t seed, const SenderOptions& options = {},
                          const std::vector<ChunkRange>& owned = {})
      : options_(Small(options)), random_(seed) {
    spdlog::set_level(spdlog::level::off);
    std::vector<TensorMeta> meta;
    for (uint32_t t = 0; t < tensors; ++t) {
      meta.push_back({"t" + std::to_string(t), DType::kBF16, {4096}});
    }
    Layout layout = *Layout::Create(std::move(meta));
    content_.resize(layout.total_bytes());
    for (std::byte& b : content_) b = static_cast<std::byte>(random_());
    Coverage part = *Coverage::Create(owned, tensors);
    auto model = Model::Create("m", dir_.path() / "m", std::move(layout), std::move(part), {},
                               options_, pool_);
    REQUIRE(model.status() == absl::OkStatus());
    model_ = *model;
  }

  const std::shared_ptr<Model>& model() const { return model_; }
  /// The model's bytes as they were published under this version.
  const std::vector<std::byte>& content(uint64_t version) const { return versions_.at(version); }

  /// Changes some elements of some tensors (all of each with `everything`), and publishes.
  /// Returns how long the trainer waited for its half.
  double Publish(uint64_t version, bool everything = false, uint64_t attempt = 0) {
    for (uint32_t c = 0; c < model_->chunks().size(); ++c) {
      const Chunk& place = model_->chunks()[c];
      if (!everything && random_() % 2 == 0) continue;
      for (int n = 0; n < (everything ? static_cast<int>(place.bytes) : 5); ++n) {
        const size_t at = everything ? static_cast<size_t>(n) : random_() % place.bytes;
        content_[place.offset + at] = static_cast<std::byte>(random_());
      }
    }
    return PublishContent(version, content_, attempt);
  }

  /// Publishes these bytes.
  double PublishContent(uint64_t version, const std::vector<std::byte>& content,
                        uint64_t attempt = 0) {
    content_ = content;
    const auto grant =
        model_->offloads().Begin({.version = version, .attempt = attempt}, [] { return false; });
    REQUIRE(grant.status() == absl::OkStatus());
    Write(grant->half_path, grant->data_offset, content_);
    ReadyNotice ready;
    ready.version = version;
    ready.lease = grant->lease;
    ready.wrote_all = true;
    REQUIRE(model_->offloads().MarkReady(ready).status() == absl::OkStatus());
    const auto info =
        WaitPublished(model_->offloads(), version, grant->lease, [] { return false; });
    REQUIRE(info.status() == absl::OkStatus());
    versions_[version] = content_;
    return grant->waited_seconds;
  }

  /// Flips a bit of the byte at `offset` of `chunk`, in the half that is published now.
  void Flip(uint32_t chunk, size_t offset = 100) {
    const auto half = model_->published()->half;
    const size_t at = model_->chunks()[chunk].offset + offset;
    const std::byte flipped = model_->half(half)[at] ^ std::byte{16};
    Write(model_->home().directory() / ("half-" + std::to_string(half) + ".safetensors"),
          model_->halves().data_offset() + at, {&flipped, 1});
  }

  static void Write(const std::filesystem::path& path, uint64_t offset, Bytes bytes) {
    const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    REQUIRE(fd >= 0);
    const ssize_t written = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    close(fd);
    REQUIRE(written == static_cast<ssize_t>(bytes.size()));
  }

 private:
  static SenderOptions Small(SenderOptions options) {
    options.scrub_bytes_per_s = 0;
    options.huge_pages = false;
    options.grace = std::chrono::milliseconds(50);
    return options;
  }

  TempDir dir_;
  ThreadPool pool_{2};
  const SenderOptions options_;
  std::mt19937_64 random_;
  std::vector<std::byte> content_;
  std::map<uint64_t, std::vector<std::byte>> versions_;
  std::shared_ptr<Model> model_;
};

}  // namespace deltawire::sender::test
