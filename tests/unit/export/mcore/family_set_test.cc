// Families that extend others, the user's own directories of families, and which family a config
// gets.
#include <fstream>

#include "tests/support/temp_dir.h"
#include "tests/unit/export/mcore/plans.h"

namespace deltawire::mcore::family_set_test {
namespace {

using testing::Families;
using testing::Get;
using testing::TextOf;

/// Loads the built-in families and one directory of files with these texts.
StatusOr<FamilySet> LoadWith(const TempDir& dir, const std::vector<std::string>& texts) {
  for (size_t i = 0; i < texts.size(); ++i) {
    std::ofstream(dir.path() / fmt::format("file{}.toml", i)) << texts[i];
  }
  const std::filesystem::path dirs[] = {dir.path()};
  return FamilySet::Load(dirs);
}

std::string Chosen(const FamilySet& set, const std::string& json) {
  const StatusOr<const Family*> family = set.Select(Get(HfConfig::Parse(json)));
  return family.ok() ? (*family)->name : TextOf(family);
}

const Param* FindParam(const Family& family, const std::string& name) {
  for (const Param& p : family.params) {
    if (p.mcore.forms[0][0] == name) return &p;
  }
  return nullptr;
}

TEST_CASE("family_set: a child has its parent's parameters, but for its own and those it lacks") {
  const Family& llama = Families().families().at("llama");
  const Family& v2 = Families().families().at("deepseek_v2");
  CHECK(FindParam(llama, "self_attention.linear_qkv.weight") != nullptr);
  CHECK(FindParam(v2, "self_attention.linear_qkv.weight") == nullptr);
  CHECK(FindParam(v2, "self_attention.linear_proj.weight")->cols == "heads * v_dim");
  CHECK(FindParam(v2, "embedding.word_embeddings.weight") != nullptr);
  CHECK(v2.dims.at("hidden") == llama.dims.at("hidden"));
  CHECK(v2.not_exported == llama.not_exported);
  // A parameter stands where its parent's stood, so that tensors keep their order.
  CHECK(v2.params[0].mcore.forms[0][0] == "embedding.word_embeddings.weight");
}

TEST_CASE("family_set: lists of a child come after its parent's") {
  TempDir dir;
  const FamilySet set = Get(LoadWith(dir, {R"(family = "mine"
extends = "llama"
match = { model_type = "mine" }
not_exported = ["*.mine"]
)"}));
  const auto& list = set.families().at("mine").not_exported;
  CHECK(list.front() == "*_extra_state");
  CHECK(list.back() == "*.mine");
}

TEST_CASE("family_set: texts are written out, of the child's where it has its own") {
  const auto hf = [](const char* family) {
    return FindParam(Families().families().at(family), "mlp.router.weight")->parts[0].hf;
  };
  CHECK(hf("qwen3_moe") == "mlp.gate.weight");
  CHECK(hf("mixtral") == "block_sparse_moe.gate.weight");
  CHECK(hf("gpt_oss") == "mlp.router.weight");
}

TEST_CASE("family_set: a copy is made of a parameter that makes its tensor alone") {
  const Family& llama = Families().families().at("llama");
  const auto copy = std::find_if(llama.params.begin(), llama.params.end(), [](const Param& p) {
    return !p.parts.empty() && p.parts[0].hf == "lm_head.weight" && p.parts[0].only_listed;
  });
  REQUIRE(copy != llama.params.end());
  CHECK(copy->mcore.forms[0][0] == "embedding.word_embeddings.weight");
  CHECK(copy->when == "(1) && (tied)");
  CHECK(copy->padded);
}

TEST_CASE("family_set: a directory's family stands for one of the same name") {
  TempDir dir;
  const FamilySet set = Get(LoadWith(dir, {R"(family = "qwen2"
extends = "llama"
match = { model_type = "qwen2" }
[dims]
qkv_bias = 0
)"}));
  CHECK(set.families().at("qwen2").dims.at("qkv_bias") == Alternatives{"0"});
  // A family that extends qwen2 extends the user's one now.
  CHECK(set.families().at("qwen2_vl").dims.at("qkv_bias") == Alternatives{"0"});
  CHECK(Families().families().at("qwen2").dims.at("qkv_bias") == Alternatives{"1"});
}

TEST_CASE("family_set: what cannot be loaded is refused with its file and the reason") {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"family = \"x\"\nextends = \"nobody\"\n"}, "extends \"nobody\", which no file defines"},
      {{"family = \"x\"\nextends = \"y\"\n", "family = \"y\"\nextends = \"x\"\n"},
       "extends itself"},
      {{"family = \"x\"\nextends = \"x\"\n"}, "extends itself"},
      {{"family = \"x\"\nextends = \"llama\"\nincludes = \"nobody\"\n"},
       "includes \"nobody\", which no file defines"},
      {{"family = \"x\"\n"}, "wants [dims] layers"},
      {{"family = \"x\"\nextends = \"llama\"\n", "family = \"x\"\nextends = \"llama\"\n"},
       "is also in"},
      {{"family = \"x\"\nextends = \"llama\"\nwithout = [\"no.such\"]\n"},
       "without names \"no.such\", which \"llama\" lacks"},
      {{"family = \"x\"\nextends = \"llama\"\ncopies = [{ of = \"no.such\", hf = \"y\" }]\n"},
       "a copy of \"no.such\", which no parameter makes alone"},
      {{"family = \"x\"\nextends = \"llama\"\n[[param]]\nmcore = \"m\"\nrows = 1\nhf = \"{q}h\"\n"},
       "{q} is neither in [texts] nor one of {n}, {l}, {e}, {L}, {root}"},
      {{"family = \"x\"\nextends = \"llama\"\n[texts]\nq = \"{q}\"\n[[param]]\nmcore = "
        "\"m\"\nrows = 1\nhf = \"{q}h\"\n"},
       "{q}"},
      {{"family = \"x\"\nnonsense\n"}, "file0.toml:2: "},
  };
  for (const auto& [texts, said] : cases) {
    CAPTURE(texts.front());
    TempDir dir;
    const StatusOr<FamilySet> set = LoadWith(dir, texts);
    REQUIRE_FALSE(set.ok());
    const std::string text = TextOf(set);
    CAPTURE(text);
    CHECK(text.find(said) != std::string::npos);
    CHECK(text.find("file") != std::string::npos);
  }
  const std::filesystem::path nowhere[] = {"no/such/directory"};
  CHECK(TextOf(FamilySet::Load(nowhere)).find("no/such/directory") != std::string::npos);
}

TEST_CASE("family_set: model_type chooses the family") {
  const FamilySet& set = Families();
  CHECK(Chosen(set, R"({"model_type": "llama"})") == "llama");
  CHECK(Chosen(set, R"({"model_type": "kimi_k2"})") == "deepseek_v3");
  // The text config of a vision-language model has a type of its own, which fits as well.
  CHECK(Chosen(set, R"({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}})") ==
        "gemma3");
  CHECK(Chosen(set, R"({"model_type": "gemma3_text"})") == "gemma3_text");
  CHECK(Chosen(set, R"({"model_type": "nobody"})").find("no model family fits model_type") == 0);
  CHECK(Chosen(set, "{}").find("no model family fits") == 0);
}

TEST_CASE("family_set: more conditions win, and a tie of unrelated families is an error") {
  TempDir dir;
  const FamilySet set = Get(LoadWith(
      dir, {"family = \"a\"\nextends = \"llama\"\nmatch = { model_type = \"m\" }\n",
            "family = \"b\"\nextends = \"llama\"\nmatch = { model_type = \"m\", architectures = "
            "\"B\" }\n",
            "family = \"c\"\nextends = \"llama\"\nmatch = { model_type = \"m\", when = \"heads == "
            "3\" }\n",
            "family = \"d\"\nextends = \"llama\"\nmatch = { model_type = \"n\" }\n",
            "family = \"e\"\nextends = \"llama\"\nmatch = { model_type = \"n\" }\n",
            "family = \"f\"\nextends = \"llama\"\nmatch = { when = \"1\" }\n"}));
  const char* plain = R"({"model_type": "m", "num_attention_heads": 2})";
  CHECK(Chosen(set, plain) == "a");
  CHECK(Chosen(set, R"({"model_type": "m", "architectures": ["A", "B"],
                        "num_attention_heads": 2})") == "b");
  CHECK(Chosen(set, R"({"model_type": "m", "num_attention_heads": 3})") == "c");
  CHECK(Chosen(set, R"({"model_type": "m", "architectures": ["B"],
                        "num_attention_heads": 3})")
            .find("\"b\" and \"c\" both fit") != std::string::npos);
  CHECK(Chosen(set, R"({"model_type": "n"})").find("\"d\" and \"e\" both fit") !=
        std::string::npos);
  CHECK(Get(set.Select(Get(HfConfig::Parse(plain)), "e"))->name == "e");
  CHECK(TextOf(set.Select(Get(HfConfig::Parse(plain)), "zzz")).find("known: a, b") !=
        std::string::npos);
}

TEST_CASE("family_set: a star in a pattern stands for any text") {
  CHECK(MatchesPattern("a*", "abc"));
  CHECK(MatchesPattern("*", ""));
  CHECK(MatchesPattern("*.b.*", "a.b.c.b.d"));
  CHECK(MatchesPattern("a*c*e", "abcde"));
  CHECK_FALSE(MatchesPattern("a*c*e", "abcd"));
  CHECK_FALSE(MatchesPattern("abc", "abcd"));
  CHECK_FALSE(MatchesPattern("*bc", "abcd"));
}

}  // namespace
}  // namespace deltawire::mcore::family_set_test
