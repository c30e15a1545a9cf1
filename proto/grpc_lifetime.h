// Keeps gRPC initialised for as long as the process lives.
// Call it before the first channel is made. Any thread, any number of times. No errors.
#pragma once

namespace deltawire {

/// Without it the last channel that goes shuts gRPC down, and waits for gRPC's background poller,
/// which nobody wakes: a program stands still for up to ten seconds at its end.
void KeepGrpc();

}  // namespace deltawire
