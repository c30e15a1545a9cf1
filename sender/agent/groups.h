// The groups of this sender's models: drives their courses by what members report, what is
// published and the clock, writes decisions, and has the attachments tell the words. Owner: the
// Agent. Threads: any; one of its own keeps the time. While it holds its lock it calls nobody.
// Cost: a thread. Errors name model and group.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/sync.h"
#include "common/config/group_options.h"
#include "common/serving/attachments.h"
#include "sender/agent/group_course.h"
#include "sender/agent/group_file.h"

namespace deltawire::sender {

struct GroupsOptions {
  std::vector<GroupOptions> groups;
  bool every_version = false;
  bool skip_absent = false;
  std::chrono::milliseconds timeout{120000};
};

struct GroupView {
  struct Member {
    std::string id;
    GroupMemberState state = GroupMemberState::kAway;
    std::string message;
  };
  std::string name;
  bool standing = true;
  GroupCourse::Phase phase = GroupCourse::Phase::kIdle;
  uint64_t round = 0;
  Identity target, committed;
  std::vector<Member> members;
  GroupOutcome last;
  uint64_t commits = 0, aborts = 0;
};

class Groups : public MemberObserver {
 public:
  /// An orchestrator's groups of one model that are not over.
  static constexpr size_t kMostNamed = 64;
  static constexpr size_t kMostMembers = 4096;

  /// `attachments` outlives this, and has this as its observer.
  Groups(GroupsOptions options, Attachments& attachments);
  ~Groups() override;

  /// A model is registered, whose directory may have decisions of an earlier process. `whole`: this
  /// agent publishes all of it; where it has a part, there are no groups.
  void Adopt(const std::string& model, const std::filesystem::path& directory,
             const Hash128& lineage, bool whole);
  void Forget(const std::string& model);
  void Published(const std::string& model, const Identity& newest);

  void Reported(const std::string& model, const std::string& id,
                const ReceiverReport& report) override;
  void Detached(const std::string& model, const std::string& id) override;

  struct Progress {
    std::string receiver_id;
    GroupMemberState state = GroupMemberState::kAway;
    Identity target;
    std::string message;
    ReceiverReport report;
  };
  /// A round of `group` for the newest state. `ids`: makes an orchestrator's group of these, or
  /// goes on with the one of that name and these members; empty: a group of the options.
  /// `progress` is told of each change of a member. Returns how the round ended, also if it was
  /// aborted.
  StatusOr<GroupOutcome> Sync(const std::string& model, const std::string& group,
                              const std::vector<std::string>& ids,
                              const std::function<bool(const Progress&)>& progress,
                              const std::function<bool()>& gone);

  std::vector<GroupView> views(const std::string& model) const;

  void Stop(const Status& why);

 private:
  using Time = SteadyClock::time_point;
  struct Entry {
    std::unique_ptr<GroupCourse> course;
    bool kept = false;                              // in the file
    std::map<std::string, ReceiverReport> reports;  // the last ones, by member
    size_t waiters = 0;                             // calls of Sync
    std::map<uint64_t, GroupOutcome> ended;         // rounds, while there are waiters
  };
  struct OfModel {
    std::filesystem::path file;
    Hash128 lineage;
    bool whole = true;
    uint64_t number = 0;  // another one for each Adopt
    Identity newest;
    std::map<std::string, Entry> groups;
    std::map<std::string, GroupWord> told;
  };

  // REQUIRES (for all of these): mu_ held.
  void AddGroup(OfModel& model, GroupCourse::Traits traits, GroupDecision last);
  GroupCourse::Traits StandingTraits(const GroupOptions& group) const;
  /// The group that `Sync` means, made if it is an orchestrator's new one.
  StatusOr<Entry*> FindGroup(const std::string& name, OfModel& model, const std::string& group,
                             const std::vector<std::string>& ids);
  Status CheckMembers(const std::string& name, const OfModel& model, const std::string& group,
                      const std::vector<std::string>& ids) const;
  Entry* Find(const std::string& model, uint64_t number, const std::string& group);
  static std::vector<Progress> Changes(const Entry& entry,
                                       std::map<std::string, std::string>& shown);
  StatusOr<GroupOutcome> AwaitRound(std::unique_lock<Mutex>& lock, const std::string& model,
                                    const std::string& group,
                                    const std::function<bool(const Progress&)>& progress,
                                    const std::function<bool()>& gone);
  Time NextTick(Time now) const;
  /// `deciding`: also what is about to be decided.
  static KeptGroups Kept(const OfModel& model, bool deciding);
  std::map<std::string, GroupWord> Words(const OfModel& model) const;
  /// Tells those who wait, and keeps for them how rounds ended.
  void NoteChange();
  /// Writes what was decided, tells what changed, and drops groups that are over. Releases the lock
  /// meanwhile. One thread at a time does so, and does what comes up meanwhile, too.
  void Settle(std::unique_lock<Mutex>& lock);
  bool WriteSome(std::unique_lock<Mutex>& lock);
  bool TellSome(std::unique_lock<Mutex>& lock);
  bool DropSome(std::unique_lock<Mutex>& lock);
  void KeepTime();

  const GroupsOptions options_;
  Attachments& attachments_;
  mutable Mutex mu_;
  CondVar cv_;
  Status stopped_;
  bool settling_ = false, again_ = false;
  uint64_t next_number_ = 1;
  uint64_t changes_ = 0;
  std::map<std::string, OfModel> models_;
  Thread thread_;
};

}  // namespace deltawire::sender
