// The command line tool. cli/command.h lists the subcommands.
#include "cli/command.h"

int main(int argc, char** argv) { return deltawire::cli::Main(argc, argv); }
