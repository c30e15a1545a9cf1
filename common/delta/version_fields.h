// The figures of one publish that have the same name in VersionInfo, in the API's messages, in the
// C ABI and in Python. A new figure is added here and to each of these structs.
#pragma once

#define DW_VERSION_FIELDS(X) \
  X(model_bytes)             \
  X(delta_bytes)             \
  X(full_bytes)              \
  X(elements)                \
  X(changed_elements)        \
  X(trainer_wait_seconds)    \
  X(offload_seconds)         \
  X(publish_seconds)         \
  X(ready_unix_nanos)        \
  X(published_unix_nanos)
