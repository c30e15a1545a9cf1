#include "common/base/similar_word.h"

#include <catch2/catch.hpp>

namespace deltawire::similar_word_test {
namespace {

TEST_CASE("typing errors are letters added, left out, replaced or swapped") {
  CHECK(TypingErrors("", "") == 0);
  CHECK(TypingErrors("", "abc") == 3);
  CHECK(TypingErrors("status", "status") == 0);
  CHECK(TypingErrors("stauts", "status") == 1);
  CHECK(TypingErrors("statu", "status") == 1);
  CHECK(TypingErrors("statuss", "status") == 1);
  CHECK(TypingErrors("stotus", "status") == 1);
  CHECK(TypingErrors("--reciever", "--receiver") == 1);
  CHECK(TypingErrors("sync", "wait") == 4);
}

TEST_CASE("a mistyped word is compared with those that are known") {
  const std::vector<std::string> known = {"publish", "status", "sync", "wait", "watch", "verify"};
  CHECK(SimilarWord("stauts", known) == "status");
  CHECK(SimilarWord("snyc", known) == "sync");
  CHECK(SimilarWord("wach", known) == "watch");
  CHECK(SimilarWord("pub", known) == "publish");
  CHECK(SimilarWord("frobnicate", known).empty());
  CHECK(SimilarWord("x", known).empty());
  CHECK(SimilarWord("status", {}).empty());
  CHECK(DidYouMean("stauts", known) == "; did you mean \"status\"?");
  CHECK(DidYouMean("frobnicate", known).empty());
}

}  // namespace
}  // namespace deltawire::similar_word_test
