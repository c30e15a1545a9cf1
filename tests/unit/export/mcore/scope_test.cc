// Expressions: precedence, alternatives, fields that change with the layer, what is refused.
#include "sender/export/mcore/scope.h"

#include "tests/unit/export/mcore/plans.h"

namespace deltawire::mcore::scope_test {
namespace {

using testing::Get;
using testing::TextOf;

constexpr const char* kConfig = R"({"a": 6, "b": 4, "yes": true, "no": false, "none": null,
  "kinds": ["x", "y", "x"], "listed": [0, 2], "sizes": [3, 0, 5], "half": 1.5})";

class ScopeFixture {
 public:
  explicit ScopeFixture(std::map<std::string, Alternatives> definitions = {})
      : scope(Get(HfConfig::Parse(kConfig)), std::move(definitions)) {}
  bool Holds(const std::string& expression) { return Get(scope.IsTrue(expression)); }
  uint64_t Size(const std::string& expression) { return Get(scope.Size(expression)); }
  std::string Refusal(const std::string& expression) {
    const StatusOr<uint64_t> size = scope.Size(expression);
    REQUIRE_FALSE(size.ok());
    return TextOf(size);
  }
  Scope scope;
};

TEST_CASE("scope: operators bind as in C") {
  ScopeFixture s;
  CHECK(s.Size("a + b * 2") == 14);
  CHECK(s.Size("(a + b) * 2") == 20);
  CHECK(s.Size("a % b") == 2);
  CHECK(s.Size("a - b % 3 * 2") == 4);
  CHECK(s.Size("a / 2") == 3);
  CHECK(s.Size("yes ? a : b") == 6);
  CHECK(s.Size("no ? a : b") == 4);
  CHECK(s.Holds("a != b && a >= 6 && b < 5"));
  CHECK(s.Holds("no || yes && yes"));
  CHECK(s.Holds("yes || no && no"));
}

TEST_CASE("scope: ! binds closer than comparisons and logic") {
  ScopeFixture s;
  CHECK(s.Holds("!no"));
  CHECK_FALSE(s.Holds("!yes"));
  CHECK(s.Holds("!no && yes"));
  CHECK_FALSE(s.Holds("!yes && no"));
  CHECK_FALSE(s.Holds("!yes && yes"));
  CHECK(s.Holds("!yes || yes"));
  // (!6) == n and !(6 == n) have the same value for n = 0 and n = 6. They differ for n = 1.
  CHECK(s.Holds("!a == 0"));
  CHECK_FALSE(s.Holds("!a == 6"));
  CHECK_FALSE(s.Holds("!a == 1"));
  CHECK(s.Holds("!(a == 1)"));
}

TEST_CASE("scope: definitions name one another in any order") {
  ScopeFixture s({{"p", {"q + 1"}}, {"q", {"a * 2"}}});
  CHECK(s.Size("p") == 13);
  CHECK(s.Size("q") == 12);
}

TEST_CASE("scope: the first alternative whose fields are all there counts") {
  ScopeFixture s({{"first", {"absent", "b", "a"}},
                  {"null", {"none", "7"}},
                  {"inner", {"first + absent", "first + a"}},
                  {"never", {"absent", "none"}},
                  {"wrong", {"absent", "a +"}}});
  CHECK(s.Size("first") == 4);
  CHECK(s.Size("null") == 7);
  CHECK(s.Size("inner") == 10);
  CHECK(s.Refusal("never").find("no field \"none\"") != std::string::npos);
  // A syntax error is no missing field, so the alternative that has it is not passed over.
  CHECK(s.Refusal("wrong").find("a +") != std::string::npos);
}

TEST_CASE("scope: a definition that names itself means the config's field") {
  ScopeFixture s({{"a", {"a * 10"}}, {"c", {"c", "8"}}});
  CHECK(s.Size("a") == 60);
  CHECK(s.Size("a + 1") == 61);
  CHECK(s.Size("c") == 8);
}

TEST_CASE("scope: definitions in a circle end in a field that is not there") {
  ScopeFixture s({{"p", {"q"}}, {"q", {"p"}}});
  CHECK(s.Refusal("p").find("no field \"p\"") != std::string::npos);
  CHECK(s.Refusal("q").find("no field \"q\"") != std::string::npos);
}

TEST_CASE("scope: what is set comes before definitions and fields") {
  ScopeFixture s({{"b", {"a"}}, {"twice", {"2 * tp"}}});
  s.scope.Set("tp", 4);
  CHECK(s.Size("twice") == 8);
  s.scope.Set("tp", 5);
  CHECK(s.Size("twice") == 10);
  s.scope.Set("b", 3);
  CHECK(s.Size("b") == 3);
}

TEST_CASE("scope: fields by layer have the value of the layer that is set") {
  ScopeFixture s({{"is_x", {"kinds.is.x"}}, {"second", {"layer == 1"}}});
  const bool x[] = {true, false, true, false};
  const bool in[] = {true, false, true, false};
  const uint64_t size[] = {3, 0, 5, 0};
  for (uint32_t layer = 0; layer < 4; ++layer) {
    CAPTURE(layer);
    s.scope.SetLayer(layer);
    CHECK(s.Holds("is_x") == x[layer]);
    CHECK(s.Holds("listed.has") == in[layer]);
    CHECK(s.Size("sizes.at") == size[layer]);
    CHECK(s.Size("a.at") == 6);
    CHECK(s.Holds("second") == (layer == 1));
    CHECK(s.Size("layer") == layer);
  }
}

TEST_CASE("scope: what is no size is refused with the expression") {
  ScopeFixture s;
  CHECK(s.Refusal("b - a").find("gives -2") != std::string::npos);
  CHECK(s.Refusal("half").find("gives 1.5") != std::string::npos);
  CHECK(s.Refusal("b / a").find("\"b / a\"") != std::string::npos);
  CHECK(s.Refusal("a / no").find("gives inf") != std::string::npos);
  CHECK(s.Refusal("1e16").find("no size") != std::string::npos);
  CHECK(s.Refusal("absent").find("config.json has no field \"absent\"") != std::string::npos);
  CHECK(s.Refusal("kinds").find("kinds") != std::string::npos);
  CHECK(s.Refusal("a +").find("expression \"a +\"") != std::string::npos);
  CHECK(s.Refusal("").find("expression \"\"") != std::string::npos);
  CHECK(s.Refusal("a = 3").find("\"=\" assigns") != std::string::npos);
  CHECK(s.Refusal("a == 3 && b = 4").find("\"=\" assigns") != std::string::npos);
}

}  // namespace
}  // namespace deltawire::mcore::scope_test
