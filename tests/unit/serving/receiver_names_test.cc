// Whose a receiver's id is.
#include "proto/serving/receiver_names.h"

#include <catch2/catch.hpp>

namespace deltawire::receiver_names_test {
namespace {

TEST_CASE("a receiver's id belongs to the principal that used it first") {
  ReceiverNames names;
  CHECK(names.Claim("r1", "rollout").ok());
  CHECK(names.Claim("r1", "rollout").ok());
  CHECK(absl::IsPermissionDenied(names.Claim("r1", "stranger")));
  CHECK(names.Claim("r2", "stranger").ok());
  CHECK(absl::IsPermissionDenied(names.Claim("r2", "rollout")));
}

TEST_CASE("a principal that makes up ids uses up its own share of them") {
  ReceiverNames names(3);
  for (const char* id : {"a", "b", "c"}) CHECK(names.Claim(id, "stranger").ok());
  CHECK(absl::IsResourceExhausted(names.Claim("d", "stranger")));
  CHECK(names.Claim("a", "stranger").ok());
  CHECK(names.Claim("d", "rollout").ok());
}

}  // namespace
}  // namespace deltawire::receiver_names_test
