// A writable mapping of one of the agent's halves, kept from offload to offload.
// Owner: shared by the client and the offload that writes it; unmapped with the last. Forked
// children do not have it.
// Threads: immutable. Errors name the file. Cost: page tables are filled once, at Map.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "common/base/bytes.h"
#include "common/base/status.h"

namespace deltawire {

class HalfMapping {
 public:
  /// `populate`: fill the page tables of the whole file. REQUIRES then: the file has no holes (the
  /// half of an agent that owns a part has holes). `sender`: its user, who owns the file.
  static StatusOr<std::shared_ptr<HalfMapping>> Map(const std::string& path, uid_t sender,
                                                    bool populate = true);
  ~HalfMapping();

  MutableBytes bytes() const { return bytes_; }
  /// Whether `path` still names the mapped file (an agent may have made its halves anew).
  bool Current(const std::string& path) const;

 private:
  HalfMapping() = default;
  MutableBytes bytes_;
  pid_t process_ = 0;
  ino_t inode_ = 0;
  std::string path_;
};

}  // namespace deltawire
