// A simulation on virtual time of work that shares resources: bytes on links, core-seconds, bytes
// of memory. Every resource is divided fairly among the works that want it. Each work proceeds at
// the pace of its scarcest resource, or at its own. For one thread; costs works times resources at
// the end of each work.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

namespace deltawire::plan {

/// One member's use of a resource over a whole work.
struct Use {
  size_t resource = 0;
  double amount = 0;   ///< in the resource's unit
  double weight = 1;   ///< its share beside others': TCP streams on a link, threads on cores
  double sharers = 1;  ///< members of the same work that use one instance of the resource
};

struct Work {
  std::vector<Use> uses;
  double least_seconds = 0;  ///< the minimum, with all resources free
  std::string pace;          ///< the cause of least_seconds, for `bound_by`
};

class Flows {
 public:
  /// `capacity` is in units per second. REQUIRES: > 0.
  size_t AddResource(std::string name, double capacity);
  size_t Start(Work work);

  static constexpr double kNever = std::numeric_limits<double>::infinity();
  /// Returns the time until the next work ends, without other events; kNever if none runs.
  double NextEnd() const;
  /// Lets `seconds` pass, and returns the works that have ended. REQUIRES: seconds <= NextEnd().
  std::vector<size_t> Advance(double seconds);

  /// Returns the main limit on the work's time: a resource's name, or its pace.
  std::string BoundBy(size_t work) const;
  const std::string& name(size_t resource) const { return resources_[resource].name; }
  /// The amount used of one instance of the resource so far.
  double amount_used(size_t resource) const { return resources_[resource].used; }
  /// The seconds during which any work used the resource.
  double busy_seconds(size_t resource) const { return resources_[resource].busy; }
  /// The share of the work done per second at this moment; for tests.
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
    double left = 1;  // share of the whole
    double pace = 0;  // share of the whole per second
    size_t bound = kOwnPace;
    std::vector<double> bound_seconds;  // by resource, then for its own pace
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
