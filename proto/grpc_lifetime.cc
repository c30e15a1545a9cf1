#include "proto/grpc_lifetime.h"

#include <grpc/grpc.h>

namespace deltawire {

void KeepGrpc() {
  [[maybe_unused]] static const bool kept = [] {
    grpc_init();  // grpc_shutdown is deliberately never called
    return true;
  }();
}

}  // namespace deltawire
