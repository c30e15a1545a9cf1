#include "cli/synth/adam_trace.h"

#include <bit>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "cli/synth/model_maker.h"
#include "common/base/human.h"

namespace deltawire::synth::adam_trace_test {
namespace {

constexpr uint64_t kSeed = 0x5EED0007;

AdamTrace Make(ThreadPool& pool, const AdamOptions& options, std::string_view size = "tiny") {
  auto t = AdamTrace::Create(MakeTensors(*FindModelShape(size)), options, pool);
  REQUIRE(t.ok());
  return std::move(*t);
}

/// One big matrix and one norm, which have enough elements for statistics.
std::vector<TensorMeta> OneMatrix() {
  return {{"model.layers.0.mlp.up_proj.weight", DType::kBF16, {1024, 1024}},
          {"model.norm.weight", DType::kBF16, {65536}}};
}

std::string Copy(const AdamTrace& t) {
  std::string out;
  for (size_t i = 0; i < t.tensors().size(); ++i) out += AsChars(t.tensor(i));
  return out;
}

uint16_t At(std::string_view bytes, size_t i) {
  return LoadLe<uint16_t>(AsBytes(bytes.substr(2 * i, 2)).data());
}

float Value(uint16_t bf16) { return std::bit_cast<float>(uint32_t{bf16} << 16); }

TEST_CASE("a trace's bits do not depend on the number of threads") {
  CAPTURE(kSeed);
  ThreadPool one(1);
  AdamTrace want = Make(one, {.seed = kSeed});
  for (int i = 0; i < 5; ++i) want.Step(one);
  for (const size_t threads : {2, 5}) {
    ThreadPool pool(threads);
    AdamTrace got = Make(pool, {.seed = kSeed});
    for (int i = 0; i < 5; ++i) got.Step(pool);
    CAPTURE(threads);
    CHECK(got.changed() == want.changed());
    CHECK((Copy(got) == Copy(want)));
  }
}

TEST_CASE("seeds, steps and tensors of the same shape differ") {
  ThreadPool pool(2);
  const AdamTrace a = Make(pool, {.seed = kSeed});
  const AdamTrace b = Make(pool, {.seed = kSeed + 1});
  CHECK((Copy(a) != Copy(b)));
  for (size_t i = 1; i < a.tensors().size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (a.tensors()[i].shape != a.tensors()[j].shape) continue;
      CAPTURE(a.tensors()[i].name, a.tensors()[j].name);
      CHECK((AsChars(a.tensor(i)) != AsChars(a.tensor(j))));
    }
  }
}

TEST_CASE("spans cover every tensor's bytes and stay where they are") {
  ThreadPool pool(2);
  AdamTrace t = Make(pool, {.seed = kSeed});
  uint64_t elements = 0;
  for (size_t i = 0; i < t.tensors().size(); ++i) {
    uint64_t n = 1;
    for (const uint64_t d : t.tensors()[i].shape) n *= d;
    CHECK(t.tensor(i).size() == 2 * n);
    elements += n;
  }
  CHECK(t.elements() == elements);
  const std::byte* before = t.tensor(3).data();
  t.Step(pool);
  CHECK(t.tensor(3).data() == before);
  CHECK(t.step() == 1);
}

TEST_CASE("weights are drawn as documented") {
  CAPTURE(kSeed);
  ThreadPool pool(2);
  auto t = AdamTrace::Create(OneMatrix(), {.seed = kSeed}, pool);
  REQUIRE(t.ok());
  const struct { double mean, low, high; } want[] = {{0.0, 0.0099, 0.0401}, {1.0, 0.0495, 0.0505}};
  for (size_t i = 0; i < 2; ++i) {
    const std::string_view bytes = AsChars(t->tensor(i));
    const size_t n = bytes.size() / 2;
    double sum = 0, squares = 0;
    for (size_t k = 0; k < n; ++k) {
      const double d = Value(At(bytes, k)) - want[i].mean;
      sum += d;
      squares += d * d;
    }
    const double sigma = std::sqrt(squares / static_cast<double>(n));
    CAPTURE(i, sigma, sum);
    CHECK(std::abs(sum / static_cast<double>(n)) < 5 * sigma / std::sqrt(static_cast<double>(n)));
    CHECK(sigma > want[i].low);
    CHECK(sigma < want[i].high);
  }
}

TEST_CASE("a step changes about one to two percent of a matrix, mostly by one step of bf16") {
  CAPTURE(kSeed);
  ThreadPool pool(2);
  auto t = AdamTrace::Create({OneMatrix()[0]}, {.seed = kSeed}, pool);
  REQUIRE(t.ok());
  for (int step = 0; step < 6; ++step) {
    const std::string before = Copy(*t);
    t->Step(pool);
    const std::string after = Copy(*t);
    uint64_t changed = 0, by_one = 0;
    for (size_t k = 0; k < t->elements(); ++k) {
      const int d = At(after, k) - At(before, k);
      changed += d != 0;
      by_one += std::abs(d) == 1;
    }
    CAPTURE(step, changed);
    CHECK(changed == t->changed());
    const double share = static_cast<double>(changed) / static_cast<double>(t->elements());
    CHECK(share > 0.005);
    CHECK(share < 0.03);
    CHECK(static_cast<double>(by_one) > 0.8 * static_cast<double>(changed));
  }
}

TEST_CASE("norm weights near one hardly ever change") {
  ThreadPool pool(2);
  auto t = AdamTrace::Create({OneMatrix()[1]}, {.seed = kSeed}, pool);
  REQUIRE(t.ok());
  t->Step(pool);
  CHECK(t->changed() < t->elements() / 2000);
}

TEST_CASE("updates keep their direction from step to step") {
  CAPTURE(kSeed);
  ThreadPool pool(2);
  // At this learning rate nearly every element changes in each step, so the steps' directions show.
  auto t = AdamTrace::Create({OneMatrix()[0]}, {.seed = kSeed, .lr = 1e-2f}, pool);
  REQUIRE(t.ok());
  std::string w0 = Copy(*t);
  t->Step(pool);
  std::string w1 = Copy(*t);
  t->Step(pool);
  const std::string w2 = Copy(*t);
  double xy = 0, xx = 0;
  for (size_t k = 0; k < t->elements(); ++k) {
    const double x = Value(At(w1, k)) - Value(At(w0, k));
    const double y = Value(At(w2, k)) - Value(At(w1, k));
    xy += x * y;
    xx += x * x;
  }
  CHECK(xy / xx == Approx(0.9).margin(0.02));
  const double sigma = std::sqrt(xx / static_cast<double>(t->elements())) / 1e-2;
  CHECK(sigma == Approx(0.32).margin(0.01));
}

TEST_CASE("masters on the bf16 grid start with fewer changes, and bf16 masters stay there") {
  CAPTURE(kSeed);
  ThreadPool pool(2);
  uint64_t changed[3] = {};
  for (const Master master : {Master::kFp32, Master::kGrid, Master::kBf16}) {
    auto t = AdamTrace::Create({OneMatrix()[0]}, {.seed = kSeed, .master = master}, pool);
    REQUIRE(t.ok());
    t->Step(pool);
    const uint64_t first = t->changed();
    for (int i = 0; i < 20; ++i) t->Step(pool);
    changed[static_cast<int>(master)] = t->changed();
    CAPTURE(static_cast<int>(master), first, t->changed());
    if (master == Master::kGrid) CHECK(first < t->changed());
    CHECK(first > 0);
  }
  CHECK(changed[2] < changed[1]);
  CHECK(changed[1] <= changed[0] * 11 / 10);
}

TEST_CASE("a tensor that is not bf16 is refused by name") {
  ThreadPool pool(1);
  const auto t = AdamTrace::Create({{"x.weight", DType::kF32, {2}}}, {}, pool);
  REQUIRE_FALSE(t.ok());
  CHECK(t.status().code() == StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(MessageOf(t.status())), Catch::Matchers::Contains("x.weight"));
}

TEST_CASE("tensors without elements are legal") {
  ThreadPool pool(2);
  auto t =
      AdamTrace::Create({{"none", DType::kBF16, {0, 4}}, {"scalar", DType::kBF16, {}}}, {}, pool);
  REQUIRE(t.ok());
  t->Step(pool);
  CHECK(t->tensor(0).empty());
  CHECK(t->tensor(1).size() == 2);
}

// Not run by default, since it takes 6 GB: synth_test "[.measure]" prints the speed and the share
// of changed elements.
TEST_CASE("a 0.6b trace prints how long each step takes and how much it changes", "[.measure]") {
  ThreadPool pool;
  const auto start = std::chrono::steady_clock::now();
  AdamTrace t = Make(pool, {.seed = kSeed}, "0.6b");
  std::printf("create %s\n", HumanSeconds(SecondsSince(start)).c_str());
  for (int i = 0; i < 6; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    t.Step(pool);
    std::printf("step %s, %.3f%% changed\n", HumanSeconds(SecondsSince(begin)).c_str(),
                100.0 * static_cast<double>(t.changed()) / static_cast<double>(t.elements()));
  }
  CHECK(t.changed() > 0);
}

}  // namespace
}  // namespace deltawire::synth::adam_trace_test
