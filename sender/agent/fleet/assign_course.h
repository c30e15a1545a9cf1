// The upstreams that a sender assigns to the receivers of one model, over time. They follow the
// planner's trees (common/plan/assign.h), but keep the place of a receiver that is away for a
// moment, and exclude receivers that others should not follow. A state machine without a clock. The
// Assigner calls it under its lock.
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

/// An attached receiver that names a site.
struct SiteReceiver {
  std::string id;
  SiteOffer offer;
  std::string peer;
  std::string follows;  ///< its upstream's address; empty: the sender
  bool paused = false;
  bool busy = false;    ///< it pulls, and changes its upstream only afterwards
  bool member = false;  ///< of a group
  bool barred = false;  ///< its principal may not use the model any more
};

/// A receiver's place in its site's tree.
struct SitePlace {
  std::string parent;  ///< id; empty: the sender
  Assignment told;
  std::string not_handed_out;  ///< why no receiver is assigned to it although it serves
  friend bool operator==(const SitePlace&, const SitePlace&) = default;
};

class AssignCourse {
 public:
  using Time = SteadyClock::time_point;
  struct Times {
    /// How long after the sender's start receivers with an upstream keep it, so that a whole tree
    /// is attached before it is planned. Twice their pause between attempts.
    std::chrono::milliseconds start{4000};
    /// How long a receiver that does not serve waits for the first one of its site that does. This
    /// and one beat more must be shorter than the silence that ends an attachment.
    std::chrono::milliseconds serve{1500};
    /// How long a receiver that left keeps its place. Its followers use back-ups meanwhile.
    std::chrono::milliseconds away{1000};
    /// A receiver that left twice within `forget` gets no followers for `doubt` after its return,
    /// and for four times as long after each further time, up to `longest_doubt`.
    std::chrono::milliseconds doubt{2000}, longest_doubt{300000};
    /// A receiver that none of its assigned followers has reached for this long is unreachable. It
    /// gets no followers for `unreached_doubt`, and for four times as long after each further time.
    std::chrono::milliseconds unreached{10000}, unreached_doubt{30000};
    std::chrono::milliseconds forget{600000};
  };

  AssignCourse(const plan::AssignLimits& limits, Time now) : AssignCourse(limits, now, Times()) {}
  AssignCourse(const plan::AssignLimits& limits, Time now, const Times& times)
      : limits_(limits), times_(times), started_(now) {}

  /// `here`: all attached receivers, in any order. Returns their places.
  const std::map<std::string, SitePlace>& Update(const std::vector<SiteReceiver>& here, Time now);
  /// When to call Update again if no receiver attaches, leaves or changes before.
  Time again() const { return again_; }

 private:
  struct Known {
    SiteReceiver last;
    uint64_t order = 0;  ///< the lowest is preferred
    bool here = false;
    Time came{}, gone{};
    uint32_t deaths = 0;  ///< recent ones
    Time doubted_until{};
    std::string doubt;       ///< the reason
    Time unreached_since{};  ///< zero: a receiver follows it, or none is assigned to it
    uint32_t unreached = 0;  ///< how often it was unreachable
  };

  void RecordPresence(const std::vector<SiteReceiver>& here, Time now);
  void RecordUnreached(Time now);
  bool HasPlace(const Known& known, Time now) const;
  /// The receivers to plan for, in the order of preference.
  std::vector<plan::AssignNode> Nodes(Time now);
  std::map<std::string, std::string> ReasonsAgainst(const std::vector<const Known*>& all,
                                                    Time now) const;
  /// The parents that the nodes have now.
  plan::Parents CurrentParents(const std::vector<plan::AssignNode>& nodes) const;
  void UpdateBy(Time at) { again_ = std::min(again_, at); }

  const plan::AssignLimits limits_;
  const Times times_;
  const Time started_;
  std::map<std::string, Known> known_;
  std::set<std::string> waiting_;               // not assigned yet
  std::map<std::string, std::string> reasons_;  // against followers, by id
  plan::Parents parents_;
  std::map<std::string, SitePlace> places_;
  Time again_ = Time::max();
  uint64_t next_order_ = 1;
};

}  // namespace deltawire::sender
