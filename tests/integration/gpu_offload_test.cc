// A trainer whose tensors lie on GPUs, which diff them, through the C library to real daemons: what
// a receiver commits is the trainer's bytes, whatever happens in between. On the fake CUDA runtime.
#include <catch2/catch.hpp>
#include <deque>
#include <random>

#include "kernels/gpu.h"
#include "sender/export/abi/deltawire_export.h"
#include "tests/support/daemons.h"
#include "tests/unit/kernels/fake_cuda.h"

namespace deltawire::testing::gpu_offload_test {
namespace {

constexpr const char* kModel = "m";

/// The tensors of `trainer` on two devices, offloaded by the C library, by one rank or by two that
/// have half of each tensor's rows.
class GpuTrainer {
 public:
  GpuTrainer(const std::string& socket, Trainer& trainer, uint32_t world) : trainer_(trainer) {
    for (uint32_t rank = 0; rank < world; ++rank) {
      dw_client_options options{};
      options.struct_size = sizeof options;
      options.endpoint = socket.c_str();
      options.model = kModel;
      options.rank = rank;
      options.world = world;
      REQUIRE(dw_client_create(&options, &clients_.emplace_back()) == DW_OK);
    }
    for (size_t t = 0; t < layout().size(); ++t) {
      const kernels::test::OnFakeDevice here(DeviceOf(t));
      REQUIRE(kernels::GpuBuffer::Create(layout().bytes(t), &memory_.emplace_back()).ok());
    }
  }
  ~GpuTrainer() {
    for (dw_client* const client : clients_) dw_client_destroy(client);
  }
  GpuTrainer(const GpuTrainer&) = delete;

  enum class End { kPublish, kDrop, kAbandon };
  /// DW_OK, or what a call answered. `unchanged`: tensors [0, unchanged) are declared so.
  int Try(uint64_t version, End end = End::kPublish, size_t unchanged = 0) {
    for (size_t t = 0; t < layout().size(); ++t) {
      const Bytes now = Bytes(trainer_.content()).subspan(layout().offset(t), layout().bytes(t));
      REQUIRE(kernels::GpuCopy(memory_[t]->bytes(), now).ok());
    }
    const uint64_t attempt = dw_draw_attempt();
    std::vector<std::unique_ptr<dw_offload, void (*)(dw_offload*)>> offloads;
    for (uint32_t rank = 0; rank < clients_.size(); ++rank) {
      if (const int code = Register(rank)) return code;
      dw_offload* offload = nullptr;
      const int code = dw_offload_begin_attempt(clients_[rank], version, attempt, &offload);
      if (code != DW_OK) return code;
      offloads.emplace_back(offload, dw_offload_destroy);
    }
    for (uint32_t rank = 0; rank < clients_.size(); ++rank) {
      for (uint32_t t = 0; rank == 0 && t < unchanged; ++t) {
        if (const int code = dw_offload_mark_unchanged(offloads[rank].get(), &t, 1)) return code;
      }
      for (const int device : {0, 1}) {
        if (const int code = Write(offloads[rank].get(), rank, device, unchanged)) return code;
      }
    }
    if (end == End::kDrop) return DW_OK;
    if (end == End::kAbandon) {
      return dw_offload_abandon(offloads.back().get(), "the loss is not a number");
    }
    for (const auto& offload : offloads) {
      if (const int code = dw_offload_ready(offload.get())) return code;
    }
    published_.struct_size = sizeof published_;
    return dw_wait_published(clients_[0], version, 0, &published_);
  }
  /// Begins anew when the sender went away meanwhile.
  void Publish(uint64_t version, size_t unchanged = 0) {
    int code = DW_UNAVAILABLE;
    REQUIRE(Eventually([&] {
      code = Try(version, End::kPublish, unchanged);
      return code != DW_UNAVAILABLE && code != DW_ABORTED && code != DW_CANCELLED &&
             code != DW_NOT_FOUND;
    }));
    INFO(dw_last_error());
    REQUIRE(code == DW_OK);
  }
  const dw_published& published() const { return published_; }

  int fail_in = -1;  ///< of a call's CUDA calls, so many succeed, and the next one fails

 private:
  const Layout& layout() const { return trainer_.layout(); }
  static int DeviceOf(size_t t) { return static_cast<int>(t % 2); }
  int Register(uint32_t rank) {
    std::vector<dw_tensor_meta> metas;
    for (size_t t = 0; t < layout().size(); ++t) {
      const TensorMeta& meta = layout().tensor(t);
      metas.push_back({sizeof(dw_tensor_meta), meta.name.c_str(), DTypeName(meta.dtype).data(),
                       meta.shape.data(), static_cast<uint32_t>(meta.shape.size())});
    }
    dw_register_options registering{};
    registering.struct_size = sizeof registering;
    registering.tensors = metas.data();
    registering.tensor_count = metas.size();
    registering.keep_side_files = 1;
    return dw_client_register(clients_[rank], &registering, nullptr);
  }
  /// The rank's rows of tensor `t`: the first, and how many.
  std::pair<uint64_t, uint64_t> RowsOf(uint32_t t, uint32_t rank) const {
    const std::vector<uint64_t>& shape = layout().tensor(t).shape;
    const uint64_t rows = shape.empty() ? 1 : shape[0], world = clients_.size();
    return {rows * rank / world, rows * (rank + 1) / world - rows * rank / world};
  }
  int Write(dw_offload* offload, uint32_t rank, int device, size_t unchanged) {
    std::vector<uint32_t> tensors;
    std::vector<dw_block> blocks;
    std::deque<std::vector<uint64_t>> shapes;
    std::vector<uint64_t> bytes_before;
    for (auto t = static_cast<uint32_t>(unchanged); t < layout().size(); ++t) {
      const auto [first, rows] = RowsOf(t, rank);
      if (DeviceOf(t) != device || (rows == 0 && layout().bytes(t) > 0)) continue;
      const std::vector<uint64_t>& shape = layout().tensor(t).shape;
      std::vector<uint64_t>& part = shapes.emplace_back(shape);
      std::vector<uint64_t>& start = shapes.emplace_back(shape.size());
      if (!shape.empty()) part[0] = rows;
      if (!shape.empty()) start[0] = first;
      const uint64_t all = shape.empty() ? 1 : std::max<uint64_t>(1, shape[0]);
      bytes_before.push_back(layout().bytes(t) / all * first);
      dw_block& block = blocks.emplace_back();
      block.struct_size = sizeof block;
      block.data = memory_[t]->bytes().data() + bytes_before.back();
      block.element_bytes = DTypeBytes(layout().tensor(t).dtype);
      block.shape = part.data();
      block.start = start.data();
      block.ndim = static_cast<uint32_t>(shape.size());
      tensors.push_back(t);
    }
    const int share = clients_.size() == 1 ? DW_SHARE_WHOLE : DW_SHARE_BLOCK;
    kernels::test::FailCudaCallIn(fail_in);
    int code = dw_offload_diff_device(offload, tensors.data(), blocks.data(), blocks.size(), device,
                                      share);
    kernels::test::FailCudaCallIn(-1);
    if (code == DW_OK || dw_offload_check(offload) != DW_OK) return code;
    for (size_t i = 0; i < blocks.size(); ++i) {  // as the header says of an error
      blocks[i].data = trainer_.content().data() + layout().offset(tensors[i]) + bytes_before[i];
      code = dw_offload_write(offload, tensors[i], &blocks[i], share);
      if (code != DW_OK) return code;
    }
    return DW_OK;
  }

  Trainer& trainer_;
  std::vector<dw_client*> clients_;  // by rank
  std::vector<std::unique_ptr<kernels::GpuBuffer>> memory_;
  dw_published published_{};
};

struct Scene {
  Scene(uint64_t seed, uint32_t world)
      : sender(root.path()),
        trainer(sender.socket(), kModel, 3, seed),
        receiver(root.path(), "r", sender.control(), kModel),
        gpu(sender.socket(), trainer, world) {}
  /// The kernels line of `deltawire status`.
  std::string Kernels() {
    v1::SenderStatusRequest request;
    v1::SenderStatusResponse response;
    grpc::ClientContext context;
    REQUIRE(sender.orchestrator().GetStatus(&context, request, &response).ok());
    return response.kernels();
  }
  void Follows(uint64_t version) {
    const bool committed = receiver.WaitCommitted(version);
    INFO(ReadText(sender.log()) << ReadText(receiver.log()));
    REQUIRE(committed);
    CHECK(trainer.Compare(receiver.dir()) == "");
  }

  ShmDir root;
  SenderProcess sender;
  Trainer trainer;
  ReceiverProcess receiver;
  GpuTrainer gpu;
};

}  // namespace

TEST_CASE("a receiver commits what the trainer's GPUs have diffed") {
  Scene s(401, 1);
  s.gpu.Publish(1);
  CHECK(s.Kernels().find("it came for the first time") != std::string::npos);
  s.Follows(1);
  for (uint64_t version = 2; version < 6; ++version) {
    CAPTURE(version);
    s.trainer.Step(0.01);
    s.gpu.Publish(version);
    CHECK_THAT(s.Kernels(), Catch::EndsWith("m is diffed on the trainer's GPU"));
    CHECK(s.gpu.published().full_bytes == 0);
    CHECK(s.gpu.published().delta_bytes < s.trainer.layout().total_bytes() / 20);
    s.Follows(version);
  }
  // Whole bytes from host memory in between, after which the GPUs begin anew.
  s.trainer.Step(0.01);
  REQUIRE(s.trainer.Publish(6).ok());
  s.Follows(6);
  s.trainer.Step(0.01);
  s.gpu.Publish(7);
  CHECK(s.Kernels().find("the GPU has another version than the sender") != std::string::npos);
  s.Follows(7);
}

TEST_CASE("a receiver commits what two ranks' GPUs have diffed of their shards") {
  Scene s(402, 2);
  s.gpu.Publish(1);
  s.Follows(1);
  for (uint64_t version = 2; version < 5; ++version) {
    CAPTURE(version);
    s.trainer.Step(0.01);
    s.gpu.Publish(version);
    // Where ranks share a chunk, a run of some bytes may change too densely for a payload.
    CHECK_THAT(s.Kernels(), Catch::Contains("m is diffed on the trainer's GPU") &&
                                !Catch::Contains("for the first time") &&
                                !Catch::Contains("another version"));
    s.Follows(version);
  }
}

TEST_CASE(
    "offloads from GPUs are bit for bit right through kills, rollbacks and aborted versions") {
  const uint64_t seed = GENERATE(411, 412);
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  Scene s(seed, 1 + seed % 2);
  uint64_t version = 1;
  s.gpu.Publish(version);
  for (int i = 0; i < 8; ++i) {
    const uint64_t what = (seed + static_cast<uint64_t>(i)) % 8;  // each of them once
    CAPTURE(i, what, version);
    if (what == 0) s.sender.Restart();
    if (what == 1) (void)s.sender.Rollback(kModel, version - 1);  // where it can
    s.trainer.Step(random() % 4 == 0 ? 0.5 : 0.01);
    ++version;
    if (what == 2) {
      REQUIRE(s.gpu.Try(version, GpuTrainer::End::kDrop) == DW_OK);
      s.trainer.Step(0.01);
      ++version;
    }
    if (what == 3) {
      REQUIRE(s.gpu.Try(version, GpuTrainer::End::kAbandon) == DW_OK);
      ++version;
    }
    if (what == 4) s.gpu.fail_in = static_cast<int>(random() % 60);
    if (what == 5) {
      REQUIRE(s.trainer.Publish(version).ok());
    } else {
      s.gpu.Publish(version);
    }
    s.gpu.fail_in = -1;
    s.Follows(version);
  }
}

}  // namespace deltawire::testing::gpu_offload_test
