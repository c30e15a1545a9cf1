// Reading a family's TOML: every mistake is named with its file and line.
#include "tests/unit/export/mcore/plans.h"

namespace deltawire::mcore::family_file_test {
namespace {

using testing::Get;
using testing::TextOf;

TEST_CASE("family_file: the keys of a file arrive in the family") {
  const Family f = Get(ParseFamily(R"(family = "f"
extends = "g"
match = { model_type = "m", architectures = ["A", "B"], when = "x > 1" }
without = ["gone"]
copies = [{ of = "a.weight", hf = "b.weight" }]
passthrough = [{ mcore = ["v.", "w."], hf = "x." }]
names = { root = ["r.", "s."], mcore_root = "language_model.", strip = "wrap." }
not_trained = "*.freq"
[dims]
n = 3
on = true
m = ["k", 4]
[texts]
t = "text"
[listed]
l = "{layer}x"
[[param]]
mcore = { te = ["a", "b"], local = "c" }
split = { te = "none", local = "rows" }
scope = "mtp"
rows = 5
hf = "h"
dtype = "F32"
add = -1
[[param]]
mcore = "p"
rows = "n"
parts = [{ hf = "q" }, { hf = "r", rows = 2, at = 1, runs = 2, pitch = 4, repeat = 3, filled = true, only_listed = true }, { zero = true }]
)",
                                   "f.toml"));
  CHECK(f.extends == "g");
  CHECK(f.model_types == std::vector<std::string>{"m"});
  CHECK(f.architectures.size() == 2);
  CHECK(f.dims.at("n") == Alternatives{"3"});
  CHECK(f.dims.at("on") == Alternatives{"1"});
  CHECK(f.dims.at("m") == Alternatives{"k", "4"});
  CHECK(f.copies.at(0).when == "1");
  CHECK(f.passthrough.at(0).mcore.size() == 2);
  CHECK(f.names.root.size() == 2);
  const Param& p = f.params.at(0);
  CHECK(p.scope == ParamScope::kMtp);
  CHECK(p.add == -1);
  CHECK(p.dtype == DType::kF32);
  CHECK(p.source == "f.toml:17");
  CHECK(p.mcore.Own(Spec::kTransformerEngine, ExpertModules::kGrouped).size() == 2);
  CHECK(p.mcore.Own(Spec::kLocal, ExpertModules::kSequential).front() == "c");
  CHECK(p.mcore.Other(Spec::kLocal, ExpertModules::kGrouped).front() == "a");
  const Param& q = f.params.at(1);
  CHECK(q.parts.at(0).rows == "n");
  CHECK(q.parts.at(1).rows == "2");
  CHECK(q.parts.at(1).pitch == "4");
  CHECK(q.parts.at(1).repeat == "3");
  CHECK(q.parts.at(1).filled);
  CHECK_FALSE(q.parts.at(0).filled);
  CHECK_FALSE(q.parts.at(1).zero);
  CHECK(q.parts.at(2).zero);
  CHECK(q.parts.at(1).only_listed);
}

struct Mistake {
  const char* text;
  const char* line;
  const char* said;
};

TEST_CASE("family_file: every mistake is refused with its line and the reason") {
  constexpr const char* kHead = "family = \"f\"\n";
  const Mistake mistakes[] = {
      {"[dims\n", "f.toml:2: ", "table"},
      {"extends = 3\n", "f.toml:2: ", "extends wants a text"},
      {"colour = 3\n", "f.toml:2: ", "unknown key \"colour\""},
      {"match = { modeltype = \"m\" }\n", "f.toml:2: ", "unknown key \"modeltype\""},
      {"match = 3\n", "f.toml:2: ", "match is a table"},
      {"dims = { a = 1.5 }\n", "f.toml:2: ", "wants an expression"},
      {"texts = { a = 1 }\n", "f.toml:2: ", "wants a text"},
      {"names = { rot = \"m.\" }\n", "f.toml:2: ", "unknown key \"rot\""},
      {"param = 3\n", "f.toml:2: ", "param wants a list of tables"},
      {"param = [3]\n", "f.toml:2: ", "param wants tables"},
      {"copies = [{ of = \"a\" }]\n", "f.toml:2: ", "a copy wants of and hf"},
      {"passthrough = [{ hf = \"a\" }]\n", "f.toml:2: ", "passthrough wants mcore and hf"},
      {"[[param]]\nhf = \"h\"\nrows = 1\n", "f.toml:2: ", "wants mcore"},
      {"[[param]]\nmcore = []\nhf = \"h\"\nrows = 1\n", "f.toml:2: ", "wants mcore"},
      {"[[param]]\nmcore = \"m\"\n", "f.toml:2: ", "wants hf, parts or drop"},
      {"[[param]]\nmcore = \"m\"\nhf = \"h\"\nrows = 1\nshapes = 3\n",
       "f.toml:6: ", "unknown key \"shapes\""},
      {"[[param]]\nmcore = \"m\"\nhf = \"h\"\nscope = \"world\"\n",
       "f.toml:2: ", "scope \"world\" is none of"},
      {"[[param]]\nmcore = \"m\"\nhf = \"h\"\nsplit = \"diagonal\"\n",
       "f.toml:2: ", "split \"diagonal\" is none of"},
      {"[[param]]\nmcore = \"m\"\nhf = \"h\"\nsplit = [\"rows\", \"none\"]\n",
       "f.toml:2: ", "is none of none, rows, columns"},
      {"[[param]]\nmcore = { te = \"m\", grouped = \"g\" }\nhf = \"h\"\n",
       "f.toml:3: ", "{te, local} or {grouped, sequential}"},
      {"[[param]]\nmcore = \"m\"\nhf = \"h\"\nparts = [{ hf = \"a\" }]\n",
       "f.toml:5: ", "either hf or parts"},
      {"[[param]]\nmcore = \"m\"\nparts = [{ rows = 3 }]\n", "f.toml:4: ", "a part wants hf"},
      {"[[param]]\nmcore = \"m\"\nparts = [{ hf = \"h\", zero = true }]\n",
       "f.toml:4: ", "a part wants hf"},
      {"[[param]]\nmcore = \"m\"\nparts = [3]\n", "f.toml:4: ", "parts wants tables"},
      {"[[param]]\nmcore = \"m\"\nparts = [{ hf = \"a\", row = 3 }]\n",
       "f.toml:4: ", "unknown key \"row\""},
      {"[[param]]\nmcore = \"m\"\nhf = \"h\"\ndtype = \"F33\"\n", "f.toml:5: ", "F33"},
      {"[[param]]\nmcore = \"m\"\nhf = \"h\"\nadd = 2\n", "f.toml:2: ", "add is -1, 0 or 1"},
      {"[[param]]\nmcore = \"m\"\nhf = \"h\"\npadded = \"yes\"\n",
       "f.toml:5: ", "padded wants true or false"},
  };
  for (const Mistake& m : mistakes) {
    CAPTURE(m.text);
    const StatusOr<Family> family = ParseFamily(std::string(kHead) + m.text, "f.toml");
    REQUIRE_FALSE(family.ok());
    const std::string text = TextOf(family);
    CAPTURE(text);
    CHECK(text.find(m.line) == 0);
    CHECK(text.find(m.said) != std::string::npos);
  }
  CHECK(TextOf(ParseFamily("extends = \"g\"\n", "f.toml")).find("wants family") !=
        std::string::npos);
}

}  // namespace
}  // namespace deltawire::mcore::family_file_test
