// The chunks that the next pull fetches whole, and how many were found.
#include "receiver/replica/corrupt_chunks.h"

#include <catch2/catch.hpp>

namespace deltawire::receiver::corrupt_chunks_test {

using Chunks = std::vector<uint32_t>;

TEST_CASE("corrupt chunks: each is taken once, and counted once while it waits") {
  CorruptChunks corrupt;
  corrupt.SetLayout("a");
  CHECK(corrupt.empty());
  CHECK(corrupt.Add(5));
  CHECK_FALSE(corrupt.Add(5));
  corrupt.Merge({2, 5});  // counted elsewhere
  CHECK(corrupt.counted() == 1);
  CHECK(corrupt.Take() == Chunks{2, 5});
  CHECK(corrupt.empty());
  corrupt.Merge({2, 5});  // the pull could not withdraw them
  CHECK(corrupt.Take() == Chunks{2, 5});
  corrupt.Count(3);
  CHECK(corrupt.counted() == 4);
}

TEST_CASE("corrupt chunks: those of another layout are ignored, and forgotten with it") {
  CorruptChunks corrupt;
  CHECK_FALSE(corrupt.AddOf("a", 1));  // there is no buffer yet
  corrupt.SetLayout("a");
  CHECK_FALSE(corrupt.AddOf("b", 1));
  CHECK(corrupt.AddOf("a", 1));
  corrupt.SetLayout("a");  // the same one, described again
  CHECK(corrupt.Take() == Chunks{1});
  CHECK(corrupt.Add(1));
  corrupt.SetLayout("");
  CHECK(corrupt.empty());
}

}  // namespace deltawire::receiver::corrupt_chunks_test
