// A trainer whose tensors lie on GPUs, which diff them, through the C library to real daemons: what
// a receiver commits is the trainer's bytes, whatever happens in between. On the fake CUDA runtime.
#include <catch2/catch.hpp>
#include <random>

#include "kernels/gpu.h"
#include "sender/export/abi/deltawire_export.h"
#include "tests/support/daemons.h"
#include "tests/unit/kernels/fake_cuda.h"

namespace deltawire::testing::gpu_offload_test {
namespace {

constexpr const char* kModel = "m";

/// The tensors of `trainer` on two devices, offloaded by the C library.
class GpuTrainer {
 public:
  GpuTrainer(const std::string& socket, Trainer& trainer) : trainer_(trainer) {
    dw_client_options options{};
    options.struct_size = sizeof options;
    options.endpoint = socket.c_str();
    options.model = kModel;
    REQUIRE(dw_client_create(&options, &client_) == DW_OK);
    for (size_t t = 0; t < layout().size(); ++t) {
      const kernels::test::OnFakeDevice here(DeviceOf(t));
      REQUIRE(kernels::GpuBuffer::Create(layout().bytes(t), &memory_.emplace_back()).ok());
    }
  }
  ~GpuTrainer() { dw_client_destroy(client_); }
  GpuTrainer(const GpuTrainer&) = delete;

  enum class End { kPublish, kDrop, kAbandon };
  /// DW_OK, or what a call answered. `unchanged`: tensors [0, unchanged) are declared so.
  int Try(uint64_t version, End end = End::kPublish, size_t unchanged = 0) {
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
    if (const int code = dw_client_register(client_, &registering, nullptr)) return code;
    dw_offload* offload = nullptr;
    if (const int code = dw_offload_begin(client_, version, &offload)) return code;
    const std::unique_ptr<dw_offload, void (*)(dw_offload*)> owner(offload, dw_offload_destroy);
    for (uint32_t t = 0; t < layout().size(); ++t) {
      const int code =
          t < unchanged ? dw_offload_mark_unchanged(offload, &t, 1) : Write(offload, t);
      if (code != DW_OK) return code;
    }
    if (end == End::kDrop) return DW_OK;
    if (end == End::kAbandon) return dw_offload_abandon(offload, "the loss is not a number");
    if (const int code = dw_offload_ready(offload)) return code;
    published_.struct_size = sizeof published_;
    return dw_wait_published(client_, version, 0, &published_);
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

  int fail_in = -1;  ///< of a tensor's CUDA calls, so many succeed, and the next one fails

 private:
  const Layout& layout() const { return trainer_.layout(); }
  static int DeviceOf(size_t t) { return static_cast<int>(t % 2); }
  int Write(dw_offload* offload, uint32_t t) {
    const Bytes now = Bytes(trainer_.content()).subspan(layout().offset(t), layout().bytes(t));
    REQUIRE(kernels::GpuCopy(memory_[t]->bytes(), now).ok());
    dw_block block{};
    block.struct_size = sizeof block;
    block.data = memory_[t]->bytes().data();
    block.element_bytes = DTypeBytes(layout().tensor(t).dtype);
    block.shape = layout().tensor(t).shape.data();
    block.ndim = static_cast<uint32_t>(layout().tensor(t).shape.size());
    kernels::test::FailCudaCallIn(fail_in);
    const int code = dw_offload_diff_device(offload, t, &block, DeviceOf(t), DW_SHARE_WHOLE);
    kernels::test::FailCudaCallIn(-1);
    if (code == DW_OK || dw_offload_check(offload) != DW_OK) return code;
    block.data = now.data();  // as the header says of an error
    return dw_offload_write(offload, t, &block, DW_SHARE_WHOLE);
  }

  Trainer& trainer_;
  dw_client* client_ = nullptr;
  std::vector<std::unique_ptr<kernels::GpuBuffer>> memory_;
  dw_published published_{};
};

struct Scene {
  explicit Scene(uint64_t seed)
      : sender(root.path()),
        trainer(sender.socket(), kModel, 3, seed),
        receiver(root.path(), "r", sender.control(), kModel),
        gpu(sender.socket(), trainer) {}
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
  Scene s(401);
  s.gpu.Publish(1);
  CHECK(s.Kernels().find("it came for the first time") != std::string::npos);
  s.Follows(1);
  for (uint64_t version = 2; version < 6; ++version) {
    CAPTURE(version);
    s.trainer.Step(0.01);
    s.gpu.Publish(version);
    CHECK(s.Kernels().ends_with("m is diffed on the trainer's GPU"));
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

TEST_CASE(
    "offloads from GPUs are bit for bit right through kills, rollbacks and aborted versions") {
  const uint64_t seed = GENERATE(411, 412);
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  Scene s(seed);
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
