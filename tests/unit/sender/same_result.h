// Compares two publishes of one version, made in different ways. Owner: none; a function. Threads:
// a test case's.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>

#include "sender/agent/diff/publish_job.h"

namespace deltawire::sender {

inline void CheckSame(const PublishJob::Result& a, const PublishJob::Result& b) {
  CHECK(*a.digests == *b.digests);
  CHECK(a.root == b.root);
  CHECK(a.changed_elements == b.changed_elements);
  CHECK(a.delta_bytes == b.delta_bytes);
  CHECK(a.full_bytes == b.full_bytes);
  const auto& left = a.delta->chunks();
  const auto& right = b.delta->chunks();
  REQUIRE(left.size() == right.size());
  for (size_t i = 0; i < left.size(); ++i) {
    CAPTURE(i);
    CHECK(left[i].chunk == right[i].chunk);
    CHECK(left[i].full == right[i].full);
    CHECK(left[i].changed == right[i].changed);
    CHECK(left[i].digest_before == right[i].digest_before);
    CHECK(left[i].digest_after == right[i].digest_after);
    CHECK(std::ranges::equal(left[i].payload, right[i].payload));
  }
}

}  // namespace deltawire::sender
