// A map from receiver ids to principals: an id belongs to the first principal that used it since
// this sender started. Another's id is kPermissionDenied; too many ids of one principal are
// kResourceExhausted. Any thread may call it.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "common/base/status.h"
#include "common/base/sync.h"

namespace deltawire {

class ReceiverNames {
 public:
  explicit ReceiverNames(size_t most_per_principal = 4096) : most_(most_per_principal) {}

  Status Claim(const std::string& id, const std::string& principal) {
    std::lock_guard lock(mu_);
    if (const auto owner = owners_.find(id); owner != owners_.end()) {
      if (owner->second == principal) return {};
      return Errorf(StatusCode::kPermissionDenied,
                    "receiver id \"{}\" belongs to another principal; give the receiver of {} a "
                    "--receiver-id of its own",
                    id, principal);
    }
    size_t& count = counts_[principal];
    if (count >= most_) {
      return Errorf(StatusCode::kResourceExhausted,
                    "principal {} has used {} receiver ids, which is the most until the sender is "
                    "restarted: keep one --receiver-id for each receiver",
                    principal, count);
    }
    ++count;
    owners_[id] = principal;
    return {};
  }

 private:
  const size_t most_;
  Mutex mu_;
  std::map<std::string, std::string> owners_;  // principal by receiver id
  std::map<std::string, size_t> counts_;       // ids by principal
};

}  // namespace deltawire
