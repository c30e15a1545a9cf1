// Files of principals: who is found by what, what they may do, and what is refused.
#include "common/security/principals.h"

#include <catch2/catch.hpp>

#include "tests/support/certificates.h"
#include "tests/support/eventually.h"
#include "tests/support/temp_dir.h"

namespace deltawire::security::principals_test {
namespace {

using Catch::Matchers::Contains;
using testing::WriteFile;

constexpr const char* kTwo = R"(
[[principal]]
name = "rollout"
roles = ["receiver"]
models = ["policy", "reward"]
certificate = ["rollout-1", "10.0.0.2"]

[[principal]]
name = "alice"
roles = ["operator", "trainer"]
token-file = "alice.token"
)";

class PrincipalFiles {
 public:
  PrincipalFiles() { WriteFile(dir_.path() / "alice.token", "alice-has-a-token-of-her-own"); }
  StatusOr<std::shared_ptr<Principals>> Load(const std::string& text) {
    WriteFile(file(), text);
    return Principals::Load(file());
  }
  std::string Refusal(const std::string& text) {
    const auto loaded = Load(text);
    return loaded.ok() ? "" : std::string(MessageOf(loaded.status()));
  }
  std::string file() const { return dir_.path() / "principals.toml"; }
  const TempDir& dir() const { return dir_; }

 private:
  TempDir dir_;
};

}  // namespace

TEST_CASE("principals are found by a certificate's names or by their token") {
  PrincipalFiles files;
  const auto table = testing::Made(files.Load(kTwo))->Now();
  REQUIRE(table->ByCertificate({"x", "10.0.0.2"}) != nullptr);
  CHECK(table->ByCertificate({"x", "10.0.0.2"})->name == "rollout");
  CHECK(table->ByCertificate({"rollout-12"}) == nullptr);
  CHECK(table->ByCertificate({}) == nullptr);
  const auto two =
      testing::Made(files.Load("[[principal]]\nname='a'\nroles='observer'\ncertificate='x'\n"
                               "[[principal]]\nname='b'\nroles='operator'\ncertificate='y'\n"));
  CHECK(two->Now()->ByCertificate({"x", "y"}) == nullptr);
  CHECK(two->Now()->ByCertificate({"y"})->name == "b");
  REQUIRE(table->ByToken("alice-has-a-token-of-her-own") != nullptr);
  CHECK(table->ByToken("alice-has-a-token-of-her-own")->name == "alice");
  CHECK(table->ByToken("alice-has-a-token-of-her-ow") == nullptr);
  CHECK(table->ByToken("") == nullptr);
}

TEST_CASE("a role includes the observer's and no other, and models are exact") {
  PrincipalFiles files;
  const auto table = testing::Made(files.Load(kTwo))->Now();
  const Principal& rollout = *table->ByName("rollout");
  const auto has = [](const Principal& p, Role role) { return p.Has(static_cast<Roles>(role)); };
  CHECK(has(rollout, Role::kReceiver));
  CHECK(has(rollout, Role::kObserver));
  CHECK_FALSE(has(rollout, Role::kOperator));
  CHECK_FALSE(has(rollout, Role::kTrainer));
  CHECK_FALSE(rollout.Has(0));
  CHECK(rollout.MayTouch("reward"));
  CHECK_FALSE(rollout.MayTouch("policy2"));
  CHECK_FALSE(rollout.MayTouch(""));
  const Principal& alice = *table->ByName("alice");
  CHECK(alice.MayTouch("anything"));
  CHECK(has(alice, Role::kTrainer));
  CHECK(has(table->anonymous(), Role::kObserver));
  CHECK_FALSE(has(table->anonymous(), Role::kOperator));
  const auto closed = testing::Made(files.Load(fmt::format("anonymous-roles = []\n{}", kTwo)));
  CHECK_FALSE(has(closed->Now()->anonymous(), Role::kObserver));
}

TEST_CASE("a file of principals that is not clear is refused with its line") {
  PrincipalFiles files;
  const std::string alice = "[[principal]]\nname='a'\nroles='operator'\ntoken-file='alice.token'\n";
  CHECK(files.Refusal(alice) == "");
  CHECK_THAT(files.Refusal("[[principal]]\nname='a'\nroles='boss'\n"),
             Contains(":3: boss is none of the roles"));
  CHECK_THAT(files.Refusal("[[principal]]\nname='a'\nroles='operator'\n"),
             Contains("needs a certificate or a token-file"));
  CHECK_THAT(files.Refusal("[[principal]]\nname='a'\ncertificate='a'\n"), Contains("has no roles"));
  CHECK_THAT(files.Refusal("[[principal]]\nroles='operator'\ncertificate='a'\n"),
             Contains("needs a name"));
  CHECK_THAT(files.Refusal("[[principal]]\nname='anonymous'\nroles='operator'\ncertificate='a'\n"),
             Contains("needs a name"));
  CHECK_THAT(files.Refusal(alice + "[[principal]]\nname='a'\nroles='observer'\ncertificate='c'\n"),
             Contains("a is there twice"));
  CHECK_THAT(files.Refusal(alice + "[[principal]]\nname='b'\nroles='observer'\n"
                                   "token-file='alice.token'\n"),
             Contains("a and b have the same token"));
  CHECK_THAT(files.Refusal(alice + "models = []\n"), Contains("leave it out for all"));
  CHECK_THAT(files.Refusal(alice + "model = 'm'\n"), Contains("not one of a principal's keys"));
  CHECK_THAT(files.Refusal("anonymous-roles = 'receiver'\n"),
             Contains(":1: anonymous-roles may be"));
  CHECK_THAT(files.Refusal("principals = 3\n"), Contains("not one of the keys"));
  CHECK_THAT(files.Refusal("principal = 3\n"), Contains("[[principal]]"));
  CHECK_THAT(files.Refusal("require-certificate = 'yes'\n"), Contains("true or false"));
}

TEST_CASE("a principal that was taken out of the file is unknown soon after") {
  PrincipalFiles files;
  const auto principals = testing::Made(files.Load(kTwo));
  WriteFile(files.file(), "anonymous-roles = []\n");
  CHECK(testing::Eventually([&] { return principals->Now()->ByName("alice") == nullptr; }));
  CHECK(principals->Now()->size() == 0);
}

}  // namespace deltawire::security::principals_test
