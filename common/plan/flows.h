// Simulates, on virtual time, work that shares resources: bytes on links, core-seconds, bytes of
// memory. At each moment every resource is divided fairly among the pieces of work that want it,
// and each piece goes on as fast as its scarcest resource, or its own pace, allows. A plain value
// of one thread. Cost: pieces times resources, whenever a piece ends. Errors: none.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

namespace deltawire::plan {

/// What one member of a work takes of a resource from its beginning to its end.
struct Use {
  size_t resource = 0;
  double amount = 0;   ///< in the resource's unit
  double weight = 1;   ///< its share beside others': TCP streams on a link, threads on cores
  double sharers = 1;  ///< members of the same work that take from one instance of the resource
};

struct Work {
  std::vector<Use> uses;
  double least_seconds = 0;  ///< however much of everything is free
  std::string pace;          ///< what least_seconds comes from, for `bound_by`
};

class Flows {
 public:
  /// `capacity` is in units a second; REQUIRES: > 0.
  size_t AddResource(std::string name, double capacity);
  size_t Start(Work work);

  static constexpr double kNever = std::numeric_limits<double>::infinity();
  /// The time until the next work ends, if nothing else happens; kNever where none runs.
  double NextEnd() const;
  /// Lets `seconds` pass; returns the works that have ended. REQUIRES: seconds <= NextEnd().
  std::vector<size_t> Advance(double seconds);

  /// What the work spent most of its time on: a resource's name, or its pace.
  std::string BoundBy(size_t work) const;
  const std::string& name(size_t resource) const { return resources_[resource].name; }
  /// Of one instance of the resource, so far.
  double amount_used(size_t resource) const { return resources_[resource].used; }
  /// Seconds in which anybody used the resource.
  double busy_seconds(size_t resource) const { return resources_[resource].busy; }
  /// Parts of the work a second, now; for tests.
  double pace(size_t work) const { return works_[work].pace; }

 private:
  static constexpr size_t kOwnPace = std::numeric_limits<size_t>::max();
  struct Resource {
    std::string name;
    double capacity = 0;
    double used = 0, busy = 0;
  };
  struct Running {
    Work work;
    double left = 1;  // of the whole
    double pace = 0;  // of the whole, a second
    size_t bound = kOwnPace;
    std::vector<double> bound_seconds;  // by resource, then of its own pace
  };
  void Share();
  /// Divides one resource among the works; returns whether a level changed.
  bool Level(size_t resource, std::vector<double>& levels) const;
  double PaceWithout(const Running& r, size_t resource, const std::vector<double>& levels) const;

  std::vector<Resource> resources_;
  std::vector<Running> works_;
  std::vector<size_t> running_;
};

}  // namespace deltawire::plan
