// The groups of this sender's models. Members' reports, published versions and the time drive each
// group's state machine (GroupCourse). Groups writes its decisions to disk, and gives its words to
// the Attachments, which send them to the members. A thread keeps the time. While Groups holds its
// lock, it asks the Attachments for the receivers, and calls nothing else. Thread-safe.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/checked_mutex.h"
#include "common/base/sync.h"
#include "common/config/group_options.h"
#include "common/serving/attachments.h"
#include "sender/agent/fleet/group_course.h"
#include "sender/agent/fleet/group_file.h"
#include "sender/agent/fleet/group_progress.h"

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
  GroupStatus status;
  std::vector<Member> members;
};

class Groups : public MemberObserver {
 public:
  /// Bound on the unfinished groups of one model that orchestrators made.
  static constexpr size_t kMostNamed = 64;
  static constexpr size_t kMostMembers = 4096;

  /// `attachments` outlives this, which becomes its observer.
  Groups(GroupsOptions options, Attachments& attachments);
  ~Groups() override;

  /// Adds a registered model, with the decisions of an earlier process in its directory. `whole`:
  /// this agent publishes the whole model; an agent of a part has no groups.
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
  /// A caller's wait for the end of one round, which goes on without the wait. One thread at a
  /// time. The Groups outlive it.
  class Wait {
   public:
    ~Wait();
    struct Step {
      std::optional<Progress> tell;         ///< a change of one member
      std::optional<GroupOutcome> outcome;  ///< set after the round's end and the last change
    };
    /// Returns the next change without blocking. Fails if the model was replaced or the sender
    /// stops.
    StatusOr<Step> Poll();

   private:
    friend class Groups;
    Wait(Groups& groups, std::string model, uint64_t number, std::string group, uint64_t round,
         std::function<void()> news);
    Groups& groups_;
    const std::string model_;
    const uint64_t number_;
    const std::string group_;
    const uint64_t round_;
    const std::shared_ptr<const std::function<void()>> news_;
    uint64_t told_ = 0;  // the serial of the last change that was returned
  };
  /// Brings `group` to the newest state in one round. An aborted round is an outcome and not an
  /// error. With `ids`, `group` is an orchestrator's group of these receivers, made if it is new.
  /// Without `ids` it is a group of the sender's options. `news` runs, without a lock, when Poll
  /// may have something.
  StatusOr<std::unique_ptr<Wait>> Sync(const std::string& model, const std::string& group,
                                       const std::vector<std::string>& ids,
                                       std::function<void()> news);

  std::vector<GroupView> views(const std::string& model) const;

  void Stop(const Status& why);

 private:
  using Time = SteadyClock::time_point;
  struct Entry {
    std::unique_ptr<GroupCourse> course;
    uint64_t number = 0;                            // of the course, among all
    bool kept = false;                              // the file has it
    std::map<std::string, ReceiverReport> reports;  // the last ones, by member
    GroupProgress progress;
  };
  /// The word of each group, with the group's number, which stands for its members.
  using Told = std::map<std::string, std::pair<uint64_t, GroupWord>>;
  struct OfModel {
    std::filesystem::path file;
    Hash128 lineage;
    bool whole = true;
    uint64_t number = 0;  // new for each Adopt, so that a waiter notices a replaced model
    Identity newest;
    std::map<std::string, Entry> groups;
    Told told;
  };

  void AddGroup(OfModel& model, GroupCourse::Traits traits, GroupDecision last)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  GroupCourse::Traits StandingTraits(const GroupOptions& group) const;
  /// Finds the group for a call of Sync. Makes an orchestrator's group that is new.
  StatusOr<Entry*> FindGroup(const std::string& name, OfModel& model, const std::string& group,
                             const std::vector<std::string>& ids)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Status CheckMembers(const std::string& name, const OfModel& model, const std::string& group,
                      const std::vector<std::string>& ids) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Entry* Find(const std::string& model, uint64_t number, const std::string& group)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static Progress ProgressOf(const Entry& entry, size_t member);
  /// A member's status line.
  static std::string LineOf(const Entry& entry, size_t member);
  void QueueNews(const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Calls the waiters that have news, without the lock.
  void CallWaiters() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Time NextTick(Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// The content of the file. `deciding`: including decisions that are about to be made.
  static KeptGroups FileContent(const OfModel& model, bool deciding);
  static Told WordsByGroup(const OfModel& model);
  std::map<std::string, GroupWord> Words(const OfModel& model) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Collects changes and ends of rounds for waiters.
  void CollectChanges() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Writes decisions, sends changed words and discards finished groups, without the lock, until
  /// none is left. One thread at a time does this, for the other threads, too.
  void Settle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool WriteDecisions() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool SendWords() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool DiscardFinished() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void KeepTime();

  const GroupsOptions options_;
  Attachments& attachments_;
  mutable CheckedMutex mu_;
  CondVar cv_;
  Status stopped_ ABSL_GUARDED_BY(mu_);
  bool settling_ ABSL_GUARDED_BY(mu_) = false;
  bool again_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t next_number_ ABSL_GUARDED_BY(mu_) = 1;  // of models and of courses
  uint64_t changes_ ABSL_GUARDED_BY(mu_) = 0;
  GroupProgress::News due_ ABSL_GUARDED_BY(mu_);  // waiters to be called
  std::map<std::string, OfModel> models_ ABSL_GUARDED_BY(mu_);
  Thread thread_;
};

}  // namespace deltawire::sender
