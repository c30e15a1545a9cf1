// The names of the files in a receiver's directory (docs/lifecycle.md, "Files"). A name does not
// say which slot a file belongs to; only its inode does. Constants.
#pragma once

namespace deltawire::receiver {

inline constexpr const char* kWeights = "model.safetensors";
/// Names of a file that is not wholly one version, or not the newest.
inline constexpr const char* kHidden[2] = {".model.safetensors.partial",
                                           ".model.safetensors.partial2"};
inline constexpr const char* kState = ".deltawire.state";

}  // namespace deltawire::receiver
