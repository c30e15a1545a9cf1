// Whose turn it is at a stream: two threads never look at once, no news is lost, and whatever
// happens in whichever order, the stream is finished once.
#include "proto/stream_turn.h"

#include <catch2/catch.hpp>
#include <random>

namespace deltawire::stream_turn_test {
namespace {

using Next = StreamTurn::Next;

Status Why(const std::string& text) { return absl::AbortedError(text); }

}  // namespace

TEST_CASE("stream turn: news meanwhile makes whoever looks look again") {
  StreamTurn turn;
  CHECK(turn.News() == Next::kLook);
  CHECK(turn.News() == Next::kNothing);
  CHECK(turn.FoundNothing() == Next::kLook);
  CHECK(turn.FoundNothing() == Next::kNothing);
  CHECK(turn.News() == Next::kLook);
  CHECK(turn.Found() == Next::kWrite);
  CHECK(turn.News() == Next::kNothing);
  CHECK(turn.Written(true) == Next::kLook);
  CHECK(turn.FoundNothing() == Next::kNothing);
}

TEST_CASE("stream turn: an end waits for whoever looks, and cancels a write") {
  StreamTurn looking;
  CHECK(looking.News() == Next::kLook);
  CHECK(looking.End(Why("first")) == Next::kNothing);
  CHECK(looking.End(Why("second")) == Next::kNothing);
  CHECK(looking.Found() == Next::kFinish);
  CHECK(looking.why() == Why("first"));
  CHECK(looking.News() == Next::kNothing);

  StreamTurn writing;
  CHECK(writing.News() == Next::kLook);
  CHECK(writing.Found() == Next::kWrite);
  CHECK(writing.End(Why("first")) == Next::kCancel);
  CHECK(writing.Written(false) == Next::kFinish);
  CHECK(writing.why() == Why("first"));

  StreamTurn idle;
  CHECK(idle.End(Why("first")) == Next::kFinish);
  CHECK(idle.News() == Next::kNothing);

  StreamTurn over;
  CHECK(over.News() == Next::kLook);
  CHECK(over.FoundEnd(absl::OkStatus()) == Next::kFinish);
  CHECK(over.End(Why("later")) == Next::kNothing);
  CHECK(over.why().ok());

  StreamTurn broken;
  CHECK(broken.News() == Next::kLook);
  CHECK(broken.Found() == Next::kWrite);
  CHECK(broken.Written(false) == Next::kFinish);
  CHECK(absl::IsCancelled(broken.why()));
}

TEST_CASE("stream turn: in any order one looks at a time, and the stream is finished once") {
  constexpr uint64_t kSeeds = 2000;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    StreamTurn turn;
    int looking = 0, writing = 0, finished = 0;
    uint64_t news = 0, seen = 0;  // numbers of changes, and of the last that a look began after
    const auto take = [&](Next next) {
      looking += next == Next::kLook;
      writing += next == Next::kWrite;
      finished += next == Next::kFinish;
      if (next == Next::kLook) seen = news;
    };
    for (int step = 0; step < 60 && finished == 0; ++step) {
      const uint64_t draw = random() % 20;
      if (looking > 0 && draw < 8) {
        --looking;
        take(draw < 4 ? turn.Found() : turn.FoundNothing());
      } else if (writing > 0 && draw < 14) {
        --writing;
        take(turn.Written(random() % 10 != 0));
      } else if (draw < 19) {
        ++news;
        take(turn.News());
      } else {
        take(turn.End(Why("end")));
      }
      REQUIRE(looking + writing <= 1);
      // Where nobody is at it, everything was seen.
      if (looking + writing + finished == 0 && !turn.ended()) REQUIRE(seen == news);
    }
    if (finished == 0) take(turn.End(Why("at last")));
    if (looking > 0) take(turn.FoundNothing());
    if (writing > 0) take(turn.Written(false));
    CHECK(finished == 1);
    CHECK(turn.End(Why("again")) == Next::kNothing);
    CHECK(turn.News() == Next::kNothing);
  }
}

}  // namespace deltawire::stream_turn_test
