// Reading config.json: nested text configs, suffixes of fields, and dtypes.
#include "sender/export/mcore/hf_config.h"

#include <fstream>

#include "tests/support/temp_dir.h"
#include "tests/unit/export/mcore/plans.h"

namespace deltawire::mcore::hf_config_test {
namespace {

using testing::Get;
using testing::TextOf;

TEST_CASE("hf_config: suffixes ask for more of a field than its value") {
  const HfConfig c = Get(HfConfig::Parse(
      R"({"n": 3, "t": true, "null": null, "word": "abc", "list": ["abc", "d"], "has": [1]})"));
  CHECK(c.Field("n", 0) == 3);
  CHECK(c.Field("t", 0) == 1);
  CHECK_FALSE(c.Field("null", 0).has_value());
  CHECK_FALSE(c.Field("absent", 0).has_value());
  CHECK_FALSE(c.Field("word", 0).has_value());
  CHECK(c.Field("n.given", 0) == 1);
  CHECK(c.Field("null.given", 0) == 0);
  CHECK(c.Field("absent.given", 0) == 0);
  CHECK(c.Field("word.is.abc", 5) == 1);
  CHECK(c.Field("word.is.d", 0) == 0);
  CHECK(c.Field("list.is.abc", 0) == 1);
  CHECK(c.Field("list.is.abc", 1) == 0);
  CHECK(c.Field("list.is.d", 1) == 1);
  CHECK(c.Field("list.is.d", 2) == 0);  // beyond the end
  CHECK_FALSE(c.Field("absent.is.x", 0).has_value());
  CHECK(c.Field("has.has", 1) == 1);  // a field may be called like a suffix
  CHECK(c.Field("has.has", 0) == 0);
  CHECK_FALSE(c.Field("n.has", 3).has_value());
}

TEST_CASE("hf_config: characters and numbers of texts, and fields of nested objects") {
  const HfConfig c = Get(HfConfig::Parse(R"({"pattern": "M*E-", "listed": "3, 4,15", "none": "",
      "blocks": [{"ffn": {"mult": 2.5, "off": false}}, {"ffn": {"mult": null, "off": true}}, 7],
      "other": {"heads": 6, "kinds": ["a", "b"]},
      "some": {"1": {"dim": 9, "null": null}, "2": 5}, "wide": {"002": {"dim": 7}, "010": {"dim": 8}}})"));
  CHECK(c.Field("some.dim", 1) == 9);
  CHECK_FALSE(c.Field("some.dim", 0).has_value());
  CHECK_FALSE(c.Field("some.dim", 2).has_value());
  CHECK_FALSE(c.Field("some.null", 1).has_value());
  CHECK(c.Field("wide.dim", 2) == 7);
  CHECK(c.Field("wide.dim", 10) == 8);
  CHECK_FALSE(c.Field("wide.dim", 1).has_value());
  CHECK(c.Field("pattern.size", 0) == 4);
  CHECK(c.Field("pattern.at", 0) == 'M');
  CHECK(c.Field("pattern.at", 1) == '*');
  CHECK(c.Field("pattern.at", 3) == '-');
  CHECK(c.Field("pattern.at", 4) == 0);  // beyond the end
  CHECK(c.Field("none.size", 0) == 0);
  CHECK(c.Field("pattern.is.M", 0) == 0);  // the whole text
  CHECK(c.Field("listed.has", 3) == 1);
  CHECK(c.Field("listed.has", 4) == 1);
  CHECK(c.Field("listed.has", 15) == 1);
  CHECK(c.Field("listed.has", 5) == 0);
  CHECK(c.Field("listed.has", 1) == 0);
  CHECK(c.Field("none.has", 0) == 0);
  CHECK(c.Field("other.heads", 5) == 6);
  CHECK(c.Field("other.kinds.is.b", 1) == 1);
  CHECK(c.Field("other.kinds.size", 0) == 2);
  CHECK_FALSE(c.Field("other.absent", 0).has_value());
  CHECK_FALSE(c.Field("other.heads.more", 0).has_value());
  CHECK(c.Field("blocks.ffn.mult", 0) == 2.5);
  CHECK_FALSE(c.Field("blocks.ffn.mult", 1).has_value());
  CHECK(c.Field("blocks.ffn.mult.given", 1) == 0);
  CHECK(c.Field("blocks.ffn.off", 1) == 1);
  CHECK_FALSE(c.Field("blocks.ffn.off", 2).has_value());  // no object
  CHECK_FALSE(c.Field("blocks.ffn.off", 3).has_value());  // beyond the end
}

TEST_CASE("hf_config: a text config comes before the top level") {
  const HfConfig c = Get(HfConfig::Parse(R"({"model_type": "vl", "tie": true, "only_top": 1,
      "text_config": {"model_type": "vl_text", "tie": false, "n": 2, "dtype": "float32"},
      "vision_config": {"n": 9, "list": [4, 7]}})"));
  CHECK(c.model_types() == std::vector<std::string>{"vl_text", "vl"});
  CHECK(c.Field("tie", 0) == 0);
  CHECK(c.Field("top.tie", 0) == 1);
  CHECK(c.Field("top.tie.given", 0) == 1);
  CHECK(c.Field("n", 0) == 2);
  CHECK_FALSE(c.Field("top.n", 0).has_value());
  CHECK(c.Field("vision.n", 0) == 9);
  CHECK(c.Field("vision.list.size", 0) == 2);
  CHECK(c.Field("vision.list.given", 0) == 1);
  CHECK_FALSE(c.Field("vision.n.size", 0).has_value());
  CHECK_FALSE(c.Field("vision.tie", 0).has_value());
  CHECK(c.Field("only_top", 0) == 1);
  CHECK(c.dtype() == DType::kF32);
}

TEST_CASE("hf_config: the text config is found under every name that it has") {
  for (const char* name : {"text_config", "llm_config", "language_config"}) {
    CAPTURE(name);
    const HfConfig c = Get(HfConfig::Parse(fmt::format(R"({{"{}": {{"n": 2}}}})", name)));
    CHECK(c.Field("n", 0) == 2);
  }
  const HfConfig omni =
      Get(HfConfig::Parse(R"({"thinker_config": {"m": 1, "text_config": {"n": 2}}})"));
  CHECK(omni.Field("n", 0) == 2);
}

TEST_CASE("hf_config: the dtype is read from either field, and is bf16 without one") {
  const auto dtype = [](const char* json) { return Get(HfConfig::Parse(json)).dtype(); };
  CHECK(dtype("{}") == DType::kBF16);
  CHECK(dtype(R"({"torch_dtype": "float16"})") == DType::kF16);
  CHECK(dtype(R"({"torch_dtype": "torch.bfloat16"})") == DType::kBF16);
  CHECK(dtype(R"({"dtype": "float32", "torch_dtype": "bfloat16"})") == DType::kF32);
  CHECK(TextOf(HfConfig::Parse(R"({"dtype": "int4"})")).find("int4") != std::string::npos);
}

TEST_CASE("hf_config: what is no JSON object is refused, and a missing file is named") {
  for (const char* text : {"", "[]", "3", "{", "{\"a\": }"}) {
    CAPTURE(text);
    CHECK(TextOf(HfConfig::Parse(text)).find("not a JSON object") != std::string::npos);
  }
  TempDir dir;
  CHECK(TextOf(HfConfig::Open(dir.path())).find("config.json") != std::string::npos);
  std::ofstream(dir.path() / "config.json") << "{\"n\": 4}";
  CHECK(Get(HfConfig::Open(dir.path())).Field("n", 0) == 4);
}

}  // namespace
}  // namespace deltawire::mcore::hf_config_test
