// What one engine is shown, a key, and for https whom the receiver believes that it is the engine.
// Read from the files that its options name, and again when one of them changes or Reload says so.
// Owner: shared by the daemon and the engine's hook. Threads: every method from any.
// Cost: Reread's. Errors name the file; what a file holds is in no message.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/config/engine_options.h"
#include "common/security/reread.h"

namespace deltawire::receiver {

/// One reading of the files; never changes.
struct EngineSecrets {
  std::string token;             ///< empty: none is shown
  std::shared_ptr<SSL_CTX> tls;  ///< null: plaintext
};

class EngineAccess {
 public:
  static StatusOr<std::shared_ptr<EngineAccess>> Load(const EngineOptions& options);

  std::shared_ptr<const EngineSecrets> Now() { return reread_->Now(); }
  Status Reload() { return reread_->Reload(); }

 private:
  EngineAccess() = default;
  std::unique_ptr<security::Reread<EngineSecrets>> reread_;
};

}  // namespace deltawire::receiver
