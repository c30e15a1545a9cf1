// Which principal a receiver's id belongs to: the one that used it first since this sender started.
// Owner: the service for receivers. Threads: any. Cost: a look-up.
// Errors: kPermissionDenied for another's id, kResourceExhausted for too many of one principal.
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
