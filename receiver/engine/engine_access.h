// The key that one engine is shown, and the authorities that https trusts. Both are read from the
// files in its options, and read again when one of them changes or after Reload. Errors name the
// file, and never its content. Thread-safe.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/config/engine_options.h"
#include "common/security/reread.h"

namespace deltawire::receiver {

/// One reading of the files. It never changes.
struct EngineSecrets {
  std::string token;             ///< empty: the engine is shown none
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
