#include "common/config/toml_file.h"

namespace deltawire {
namespace {

using Kind = TomlItem::Kind;

TEST_CASE("keys, values of every kind, comments and line ends are read") {
  const auto items = ParseToml(
      "# first\n"
      "\n"
      "  text = \"a # \\\"b\\\" \\\\ c\" # trailing\r\n"
      "literal='C:\\dir'\n"
      "number = -1_000\n"
      "yes = true\n"
      "no=false#x\n"
      "list = [\"a\", # one\n"
      "  'b',\n"
      "]\n"
      "empty = []\n"
      "last = \"\"",
      "f");
  REQUIRE(items.ok());
  struct {
    const char* key;
    Kind kind;
    std::vector<std::string> values;
    int line;
  } const want[] = {{"text", Kind::kString, {"a # \"b\" \\ c"}, 3},
                    {"literal", Kind::kString, {"C:\\dir"}, 4},
                    {"number", Kind::kInteger, {"-1000"}, 5},
                    {"yes", Kind::kBoolean, {"true"}, 6},
                    {"no", Kind::kBoolean, {"false"}, 7},
                    {"list", Kind::kStrings, {"a", "b"}, 8},
                    {"empty", Kind::kStrings, {}, 11},
                    {"last", Kind::kString, {""}, 12}};
  REQUIRE(items->size() == std::size(want));
  for (size_t i = 0; i < items->size(); ++i) {
    CAPTURE(i);
    CHECK((*items)[i].key == want[i].key);
    CHECK(((*items)[i].kind == want[i].kind));
    CHECK((*items)[i].values == want[i].values);
    CHECK((*items)[i].line == want[i].line);
  }
  CHECK(ParseToml("", "f")->empty());
  CHECK(ParseToml("# only\n\n", "f")->empty());
}

TEST_CASE("what is malformed is refused with file and line") {
  for (const char* text : {"key",
                           "key value",
                           "key =",
                           "= 1",
                           "key = \"open",
                           "key = \"open\nx\"",
                           "key = 'open",
                           "key = 1 2",
                           "key = \"a\" b",
                           "key = bare",
                           "key = 1.5",
                           "key = 1__0",
                           "key = _1",
                           "key = 1_",
                           "key = -",
                           "key = 12-3",
                           "key = +true",
                           "key = 0x10",
                           "key = [\"a\"",
                           "key = [\"a\" \"b\"]",
                           "key = [1]",
                           "key = [[\"a\"]]",
                           "key = [,]",
                           "[section]",
                           "a.b = 1",
                           "\"quoted\" = 1",
                           "key = \"\"\"a\"\"\"",
                           "key = \"\\n\"",
                           "key = \"\x01\"",
                           "key = {a = 1}",
                           "key = 2026-01-01",
                           "key = 1\nkey = 2",
                           "\xef\xbb\xbfkey = 1"}) {
    CAPTURE(text);
    const Status status = ParseToml(std::string("\n") + text, "some.toml").status();
    CHECK(status.code() == StatusCode::kInvalidArgument);
    CHECK(std::string(MessageOf(status)).find("some.toml:") == 0);
  }
  CHECK(std::string(MessageOf(ParseToml("a = 1\n\nb = \n", "x").status())).find("x:3: ") == 0);
  CHECK(MessageOf(ParseToml("a = 1\nb = 2\na = 3", "x").status()) ==
        "x:3: a is set again; line 1 already sets it");
}

}  // namespace
}  // namespace deltawire
