// The trainers that use a model (AttendModel), whether or not they write a version now. The model
// learns which of their clients are alive. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/checked_mutex.h"
#include "common/base/listeners.h"
#include "common/base/sync.h"

namespace deltawire::sender {

class Model;

class ModelUsers {
 public:
  /// A use lasts until it is dropped, even if this object is destroyed before.
  using Use = std::shared_ptr<const void>;
  /// `client`: as in OffloadRequest.
  [[nodiscard]] Use Enter(const std::string& model, uint32_t rank, const std::string& publisher,
                          uint64_t client = 0);
  /// Gives the model the users of its name, which another model may have had until now.
  void Serve(const std::shared_ptr<Model>& model);
  /// The users of the model, in order of arrival: "rank 0 (python train.py, process 4711 on
  /// node7)".
  std::vector<std::string> Of(const std::string& model) const;

  /// `news` is called, without a lock, when the agent stops; see Listeners.
  [[nodiscard]] Listeners::Listener OnStop(std::function<void()> news) {
    return listeners_.Add(std::move(news));
  }
  bool stopped() const;
  void Stop();

 private:
  struct User {
    std::string who;
    uint64_t client = 0;
  };
  struct Named {
    std::weak_ptr<Model> model;      // weak, so that it can be replaced
    std::map<uint64_t, User> users;  // by arrival
  };
  struct Table {
    CheckedMutex mu;
    bool stopped ABSL_GUARDED_BY(mu) = false;
    uint64_t next ABSL_GUARDED_BY(mu) = 1;
    std::map<std::string, Named> models ABSL_GUARDED_BY(mu);
  };
  const std::shared_ptr<Table> table_ = std::make_shared<Table>();
  Listeners listeners_;
};

}  // namespace deltawire::sender
