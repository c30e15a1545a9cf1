// The upstreams that a sender assigns to the receivers of one model, over time. They follow the
// planner's trees (common/plan/assign.h), but stay as they are while a receiver is away for a
// moment, and leave out receivers that others should not follow. Pure: a function of the attached
// receivers and of time. The Assigner calls it under its lock.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/base/assignment.h"
#include "common/base/sync.h"
#include "common/plan/assign.h"

namespace deltawire::sender {

/// A receiver that is attached and says a site.
struct SiteReceiver {
  std::string id;
  SiteOffer offer;
  std::string peer;
  std::string follows;  ///< the address that it follows now; empty: the sender
  bool paused = false;
  bool busy = false;    ///< it pulls, and will follow another one only when it is done
  bool member = false;  ///< of a group
  bool barred = false;  ///< its principal may not use the model any more
};

/// Where a receiver stands in its site's tree.
struct SitePlace {
  std::string parent;  ///< id; empty: the sender
  Assignment told;
  std::string not_handed_out;  ///< why nobody is told to follow it although it serves
  friend bool operator==(const SitePlace&, const SitePlace&) = default;
};

class AssignCourse {
 public:
  using Time = SteadyClock::time_point;
  struct Times {
    /// For so long after the sender's start, receivers that follow somebody are left alone, so that
    /// all of a tree are here before it is planned. It is twice their pause between attempts.
    std::chrono::milliseconds start{4000};
    /// A receiver that does not serve waits at most so long for the first one of its site that
    /// does. This and one beat more must be shorter than the silence that ends an attachment.
    std::chrono::milliseconds serve{1500};
    /// A receiver that has gone keeps its place for so long. Its followers use back-ups meanwhile.
    std::chrono::milliseconds away{1000};
    /// A receiver that has gone twice within `forget` is not handed out for `doubt` after its
    /// return, and four times as long after each further time, up to `longest_doubt`.
    std::chrono::milliseconds doubt{2000}, longest_doubt{300000};
    /// If for so long nobody follows a receiver that was handed out, it counts as unreachable. It
    /// is not handed out for `unreached_doubt`, and four times as long after each further time.
    std::chrono::milliseconds unreached{10000}, unreached_doubt{30000};
    std::chrono::milliseconds forget{600000};
  };

  AssignCourse(const plan::AssignLimits& limits, Time now) : AssignCourse(limits, now, Times()) {}
  AssignCourse(const plan::AssignLimits& limits, Time now, const Times& times)
      : limits_(limits), times_(times), started_(now) {}

  /// `here`: all that are attached now, in any order. Returns the places of these.
  const std::map<std::string, SitePlace>& Update(const std::vector<SiteReceiver>& here, Time now);
  /// When to call Update again if nobody comes, goes or changes before.
  Time again() const { return again_; }

 private:
  struct Known {
    SiteReceiver last;
    uint64_t order = 0;  ///< the lowest goes first where several could take a place
    bool here = false;
    Time came{}, gone{};
    uint32_t deaths = 0;  ///< lately
    Time doubted_until{};
    std::string doubt;       ///< why
    Time unreached_since{};  ///< zero: somebody follows it, or nobody is told to
    uint32_t unreached = 0;  ///< times
  };

  void Note(const std::vector<SiteReceiver>& here, Time now);
  /// Notes who was told to follow somebody and does not.
  void NoteUnreached(Time now);
  bool Kept(const Known& known, Time now) const;
  /// Those that are planned for, in the order in which they are preferred.
  std::vector<plan::AssignNode> Nodes(Time now);
  std::map<std::string, std::string> ReasonsAgainst(const std::vector<const Known*>& all,
                                                    Time now) const;
  plan::Parents Before(const std::vector<plan::AssignNode>& nodes) const;
  void Again(Time at) { again_ = std::min(again_, at); }

  const plan::AssignLimits limits_;
  const Times times_;
  const Time started_;
  std::map<std::string, Known> known_;
  std::set<std::string> waiting_;               // told nothing yet
  std::map<std::string, std::string> reasons_;  // against handing out, by id
  plan::Parents parents_;
  std::map<std::string, SitePlace> places_;
  Time again_ = Time::max();
  uint64_t next_order_ = 1;
};

}  // namespace deltawire::sender
