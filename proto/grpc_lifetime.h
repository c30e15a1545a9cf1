// The lifetime of gRPC: initialized once, for as long as the process lives.
#pragma once

namespace deltawire {

/// Call it before the first channel is made, from any thread, any number of times. Otherwise
/// closing the last channel shuts gRPC down and waits for its background poller, which no thread
/// wakes: the program would hang for up to ten seconds at its end.
void KeepGrpc();

}  // namespace deltawire
