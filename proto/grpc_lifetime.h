// Keeps gRPC initialised for as long as the process lives.
// Threads: any, any number of times. No errors.
#pragma once

namespace deltawire {

/// Call it before the first channel is made. Otherwise closing the last channel shuts gRPC down and
/// waits for its background poller, which nobody wakes: the program would hang for up to ten
/// seconds at its end.
void KeepGrpc();

}  // namespace deltawire
