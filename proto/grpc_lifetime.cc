#include "proto/grpc_lifetime.h"

#include <grpc/grpc.h>

namespace deltawire {

void KeepGrpc() {
  [[maybe_unused]] static const bool kept = [] {
    grpc_init();  // and never grpc_shutdown
    return true;
  }();
}

}  // namespace deltawire
