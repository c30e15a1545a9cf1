// Messages as JSON, in the form of docs/json.md.
#include "proto/client/json.h"

#include <catch2/catch.hpp>
#include <limits>

#include "common/base/trace.h"
#include "proto/convert.h"
#include "proto/deltawire/v1/receiver.pb.h"

namespace deltawire::json_test {
namespace {

TEST_CASE("JSON has every field of a message, 64-bit numbers as numbers, hashes as text") {
  v1::VerifyResponse m;
  m.mutable_committed()->set_epoch(1);
  m.mutable_committed()->set_version(std::numeric_limits<uint64_t>::max());
  m.set_seconds(0.5);
  m.add_bad_tensors("a.weight");
  m.add_bad_tensors("b.weight");
  m.set_repaired(true);
  std::string expected = R"({"committed":{"epoch":1,"version":18446744073709551615,"lineage":"",)"
                         R"("root":"0000000000000000","attempt":"0000000000000000","trace":")";
  expected += fmt::format("{:016x}", TraceOf(FromProto(m.committed())).value);
  expected +=
      R"("},"chunks":0,"bytes":0,)"
      R"("seconds":0.5,"bad_chunks":0,"bad_tensors":["a.weight","b.weight"],"repaired":true,)"
      R"("engines":[]})";
  CHECK(ToJson(m).dump() == expected);
}

TEST_CASE("JSON has nested messages as objects, and lists of them as arrays") {
  v1::ReceiverStatusResponse m;
  m.set_program_version("1");
  auto* model = m.add_models();
  model->set_model("m");
  model->set_attached(true);
  model->mutable_last_pull()->set_payload_bytes(3);
  const Json json = ToJson(m);
  CHECK(json["program_version"] == "1");
  REQUIRE(json["models"].size() == 1);
  CHECK(json["models"][0]["attached"] == true);
  CHECK(json["models"][0]["following"] == false);
  CHECK(json["models"][0]["last_pull"]["payload_bytes"] == 3);
}

TEST_CASE("JSON replaces bytes that are no UTF-8") {
  CHECK(ToLine(Json{{"message", "a\xff"}}) == "{\"message\":\"a\xef\xbf\xbd\"}");
}

}  // namespace
}  // namespace deltawire::json_test
