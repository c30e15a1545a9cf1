// A writable mapping of one of the agent's halves, kept from offload to offload. The client and the
// offload that writes it share it, and the last owner unmaps it. Forked children do not have it.
// Map fills the page tables once. Errors name the file.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "common/base/bytes.h"
#include "common/base/status.h"

namespace deltawire {

class HalfMapping {
 public:
  /// `populate` fills the page tables of the whole file. REQUIRES then: the file has no holes (the
  /// half of an agent that owns a part has holes). `sender` is the user who owns the file.
  static StatusOr<std::shared_ptr<HalfMapping>> Map(const std::string& path, uid_t sender,
                                                    bool populate = true);
  ~HalfMapping();

  MutableBytes bytes() const { return bytes_; }
  /// Returns whether `path` still names the mapped file. The agent may have made its halves anew.
  bool Current(const std::string& path) const;

 private:
  HalfMapping() = default;
  MutableBytes bytes_;
  pid_t process_ = 0;
  ino_t inode_ = 0;
  std::string path_;
};

}  // namespace deltawire
