// deltawire: the command line tool. Subcommands: cli/command.h.
#include "cli/command.h"

int main(int argc, char** argv) { return deltawire::cli::Main(argc, argv); }
