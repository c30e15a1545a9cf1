// The engine's C ABI where it meets callers of another age, and callers who are mistaken. What it
// does for an engine is in tests/install/consumer/engine.c.
#include <catch2/catch.hpp>
#include <cstring>

#include "receiver/engine_client/abi/deltawire_engine.h"
#include "tests/unit/receiver/pull/round_rig.h"

namespace deltawire::engine::c_abi_engine_test {
namespace {

using receiver::FakeAgent;
using receiver::RoundRig;

/// A receiver that has committed version 1 of six tensors of 500 bf16 elements.
struct Directory {
  Directory() : rig(1, 2) {
    now = FakeAgent::Make(rig.layout, 1);
    rig.Publish({1, 1}, now);
    const auto round = rig.Round(rig.Newest(), false);
    REQUIRE(rig.Run(*round) == absl::OkStatus());
  }
  dw_engine* Open() const {
    const std::string path = rig.dir.path().string();
    dw_engine_options o{};
    o.struct_size = sizeof o;
    o.directory = path.c_str();
    o.threads = 1;
    dw_engine* engine = nullptr;
    REQUIRE(dw_engine_open(&o, &engine) == DW_ENGINE_OK);
    return engine;
  }
  RoundRig rig;
  FakeAgent::Chunks now;
};

struct Closing {
  ~Closing() { dw_engine_close(engine); }
  dw_engine* engine;
};

std::string Said() { return dw_engine_last_error(); }

TEST_CASE("engine C ABI: a directory that is no receiver's is an error, and no handle") {
  TempDir empty;
  const std::string path = empty.path().string();
  dw_engine_options o{};
  o.struct_size = sizeof o;
  o.directory = path.c_str();
  dw_engine* engine = nullptr;
  CHECK(dw_engine_open(&o, &engine) == DW_ENGINE_NOT_FOUND);
  CHECK_THAT(Said(), Catch::Contains(path));
  CHECK(engine == nullptr);
  o.directory = nullptr;
  CHECK(dw_engine_open(&o, &engine) == DW_ENGINE_INVALID_ARGUMENT);
  CHECK(dw_engine_open(nullptr, &engine) == DW_ENGINE_INVALID_ARGUMENT);
  dw_engine_close(nullptr);
}

TEST_CASE("engine C ABI: a newer header's struct keeps its unknown fields, a short one fails") {
  const Directory directory;
  const Closing closing{directory.Open()};
  dw_engine_model model{};
  std::memset(&model, 0x5a, sizeof model);
  model.struct_size = 8;
  CHECK(dw_engine_get_model(closing.engine, &model) == DW_ENGINE_INVALID_ARGUMENT);
  CHECK_THAT(Said(), Catch::Contains("sizeof(dw_engine_model)"));
  // A struct of a later header: what this library does not know stays as it is.
  struct {
    dw_engine_model model;
    uint64_t later;
  } newer{};
  newer.model.struct_size = sizeof newer;
  newer.later = 4711;
  CHECK(dw_engine_get_model(closing.engine, &newer.model) == DW_ENGINE_OK);
  CHECK(Said().empty());
  CHECK(newer.model.tensors == 6);
  CHECK(newer.model.bytes == 6000);
  CHECK(newer.model.chunks == 6);
  CHECK(std::string(newer.model.fingerprint) == directory.rig.layout.fingerprint().Hex());
  CHECK(newer.later == 4711);

  dw_engine_tensor tensor{};
  tensor.struct_size = sizeof tensor;
  CHECK(dw_engine_get_tensor(closing.engine, 5, &tensor) == DW_ENGINE_OK);
  CHECK(std::string(tensor.name) == "t5");
  CHECK(std::string(tensor.dtype) == "BF16");
  CHECK(tensor.ndim == 1);
  CHECK(tensor.shape[0] == 500);
  CHECK(dw_engine_get_tensor(closing.engine, 6, &tensor) == DW_ENGINE_INVALID_ARGUMENT);
}

TEST_CASE("engine C ABI: a mistaken caller is told, and nothing is read or written") {
  const Directory directory;
  const Closing closing{directory.Open()};
  dw_engine* const engine = closing.engine;
  std::vector<std::byte> memory(1000, std::byte{7});
  dw_engine_storage storage{sizeof storage, "all", memory.data(), memory.size()};
  const uint64_t counts[] = {500};
  const int64_t dense[] = {1};
  dw_engine_box box{};
  box.struct_size = sizeof box;
  box.tensor = 2;
  box.ndim = 1;
  box.counts = counts;
  box.source_strides = box.place_strides = dense;

  CHECK(dw_engine_adopt(engine, nullptr) == DW_ENGINE_FAILED_PRECONDITION);
  CHECK(dw_engine_bind(engine, nullptr, 1, &box, 1) == DW_ENGINE_INVALID_ARGUMENT);
  auto wrong = box;
  const auto refuses = [&](const dw_engine_box& b) {
    return dw_engine_bind(engine, &storage, 1, &b, 1) == DW_ENGINE_INVALID_ARGUMENT;
  };
  SECTION("a box of no tensor") { wrong.tensor = 6; }
  SECTION("a box of no storage") { wrong.storage = 1; }
  SECTION("a box without dimensions") { wrong.ndim = 0; }
  SECTION("a box of too many dimensions") { wrong.ndim = DW_ENGINE_BOX_DIMS + 1; }
  SECTION("a box without counts") { wrong.counts = nullptr; }
  SECTION("a box that leaves the tensor") { wrong.source_offset = 1; }
  SECTION("a box beyond all memory") { wrong.place_offset = INT64_MAX; }
  SECTION("a box whose bytes overflow into the storage") { wrong.place_offset = INT64_MIN; }
  SECTION("a box of a header before the first") { wrong.struct_size = 16; }
  CHECK((std::memcmp(&wrong, &box, sizeof box) == 0 || refuses(wrong)));

  REQUIRE(dw_engine_bind(engine, &storage, 1, &box, 1) == DW_ENGINE_OK);
  uint64_t bytes = 7;
  CHECK(dw_engine_unmapped(engine, 1, &bytes) == DW_ENGINE_INVALID_ARGUMENT);
  CHECK(dw_engine_unmapped(engine, 0, &bytes) == DW_ENGINE_OK);
  CHECK(bytes == 0);
  CHECK(dw_engine_digest(engine, 0, &bytes) == DW_ENGINE_FAILED_PRECONDITION);
  dw_engine_comparison found{};
  found.struct_size = sizeof found;
  CHECK(dw_engine_adopt(engine, &found) == DW_ENGINE_OK);
  REQUIRE(found.different_count == 1);
  CHECK(found.different[0] == 2);
  CHECK(dw_engine_prepare(engine, nullptr) == DW_ENGINE_FAILED_PRECONDITION);
  CHECK(dw_engine_apply(engine) == DW_ENGINE_FAILED_PRECONDITION);
  CHECK(dw_engine_apply(nullptr) == DW_ENGINE_INVALID_ARGUMENT);
  CHECK(dw_engine_discard(engine) == DW_ENGINE_OK);  // of nothing
  CHECK(dw_engine_discard(nullptr) == DW_ENGINE_INVALID_ARGUMENT);

  std::memcpy(memory.data(), directory.now[2].data(), 1000);
  CHECK(dw_engine_adopt(engine, &found) == DW_ENGINE_OK);
  CHECK(found.different_count == 0);
  CHECK(dw_engine_check_chunks(engine, 6, 1, &found) == DW_ENGINE_INVALID_ARGUMENT);
  CHECK(dw_engine_judge(engine, nullptr, 1, &found) == DW_ENGINE_INVALID_ARGUMENT);
  const dw_engine_share strange{6, 1000, 1, 1};
  CHECK(dw_engine_judge(engine, &strange, 1, &found) == DW_ENGINE_INVALID_ARGUMENT);
  CHECK(dw_engine_judge(engine, nullptr, 0, &found) == DW_ENGINE_OK);
  CHECK(dw_engine_check_chunks(engine, 2, 1, &found) == DW_ENGINE_OK);
  CHECK(found.bytes == 1000);
  CHECK(found.share_count == 0);
  CHECK(dw_engine_digest(engine, 6, &bytes) == DW_ENGINE_INVALID_ARGUMENT);
  CHECK(dw_engine_digest(engine, 2, &bytes) == DW_ENGINE_OK);
  CHECK(dw_engine_read(engine, 2, 2, memory.data(), 1000) == DW_ENGINE_INVALID_ARGUMENT);
  CHECK(dw_engine_read(engine, DW_ENGINE_STATE_HELD, 2, memory.data(), 998) ==
        DW_ENGINE_INVALID_ARGUMENT);
  CHECK(dw_engine_read(engine, DW_ENGINE_STATE_PREPARED, 2, memory.data(), 1000) ==
        DW_ENGINE_FAILED_PRECONDITION);
}

TEST_CASE("engine C ABI: a device that is not there is told, and nothing is bound to it") {
  const Directory directory;
  const Closing closing{directory.Open()};
  std::vector<std::byte> memory(1000, std::byte{7});
  const dw_engine_storage storage{sizeof storage, "all", memory.data(), memory.size()};
  const uint64_t counts[] = {500};
  const int64_t dense[] = {1};
  dw_engine_box box{};
  box.struct_size = sizeof box;
  box.ndim = 1;
  box.counts = counts;
  box.source_strides = box.place_strides = dense;
  const auto bind = [&](const dw_engine_device* device) {
    return dw_engine_bind_device(closing.engine, &storage, 1, &box, 1, device);
  };
  CHECK(bind(nullptr) == DW_ENGINE_INVALID_ARGUMENT);
  dw_engine_device device{sizeof device, -1, nullptr};
  CHECK(bind(&device) == DW_ENGINE_INVALID_ARGUMENT);
  device.device = 4711;
  const int code = dw_engine_find_device(device.device);
  CAPTURE(Said());
  CHECK((code == DW_ENGINE_UNIMPLEMENTED || code == DW_ENGINE_FAILED_PRECONDITION));
  CHECK(bind(&device) == code);
  CHECK(dw_engine_adopt(closing.engine, nullptr) == DW_ENGINE_FAILED_PRECONDITION);
  CHECK(memory == std::vector<std::byte>(1000, std::byte{7}));
}

TEST_CASE("engine C ABI: a state's name is cut as snprintf cuts, and a wait ends as it is told") {
  const Directory directory;
  const Closing closing{directory.Open()};
  dw_engine_identity committed{};
  REQUIRE(dw_engine_committed(closing.engine, &committed) == DW_ENGINE_OK);
  const std::string all = DescribeFully(directory.rig.buffer->committed());
  char text[12];
  CHECK(dw_engine_describe(&committed, text, sizeof text) == all.size());
  CHECK(std::string(text) == all.substr(0, sizeof text - 1));
  CHECK(dw_engine_describe(&committed, nullptr, 0) == all.size());
  dw_engine_identity found{};
  CHECK(dw_engine_wait(closing.engine, &committed, 5, nullptr, nullptr, &found) ==
        DW_ENGINE_DEADLINE_EXCEEDED);
  int asked = 0;
  const auto gone = [](void* context) { return ++*static_cast<int*>(context); };
  CHECK(dw_engine_wait(closing.engine, &committed, UINT64_MAX, gone, &asked, &found) ==
        DW_ENGINE_CANCELLED);
  CHECK(asked == 1);
  const dw_engine_identity none{};
  CHECK(dw_engine_wait(closing.engine, &none, 0, nullptr, nullptr, &found) == DW_ENGINE_OK);
  CHECK(std::memcmp(&found, &committed, sizeof found) == 0);
}

}  // namespace
}  // namespace deltawire::engine::c_abi_engine_test
