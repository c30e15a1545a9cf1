// The version command: prints the versions of the program and of every format that it speaks.
#include <cstdio>
#include <memory>

#include "cli/command.h"
#include "cli/output.h"
#include "common/wire/frame.h"
#include "kernels/format.h"
#include "kernels/kernels.h"

namespace deltawire::cli {

void DeclareVersion(CLI::App& app, Run* run) {
  auto o = std::make_shared<Common>();
  CLI::App* sub = app.add_subcommand("version", "Versions of the program and of its formats");
  o->AddJson(*sub);
  sub->callback([o, run] {
    *run = [o]() -> StatusOr<Exit> {
      const char* kernels = kernels::Best().name;
      if (o->json) {
        PrintJson({{"program", DELTAWIRE_VERSION},
                   {"api", "deltawire.v1"},
                   {"wire_format", wire::kWireVersion},
                   {"delta_format", kernels::kFormat},
                   {"kernels", kernels}});
      } else {
        std::printf(
            "deltawire %s (API deltawire.v1, wire format %u, delta format %u, kernels %s)\n",
            DELTAWIRE_VERSION, unsigned{wire::kWireVersion}, unsigned{kernels::kFormat}, kernels);
      }
      return Exit::kOk;
    };
  });
}

}  // namespace deltawire::cli
