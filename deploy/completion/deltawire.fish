# Completion for fish. The words come from --help, so that they are those of the installed version.
function __deltawire_options
    set -l words (commandline -opc)
    set -l command
    if test (path basename $words[1]) = deltawire; and set -q words[2]
        set command $words[2]
    end
    $words[1] $command --help 2>/dev/null |
        sed -n 's/^ *\(-[a-z],\)\{0,1\}\(--[][a-z-]*\).*/\2/p' |
        sed 's/^--\[no-\]\(.*\)/--\1\n--no-\1/'
end

function __deltawire_commands
    deltawire --help 2>/dev/null |
        sed -n '/^Subcommands:/,/^$/s/^  \([a-z][a-z-]*\) *\(.*\)/\1\t\2/p'
end

complete -c deltawire -n __fish_use_subcommand -f -a '(__deltawire_commands)'
complete -c deltawire -n '__fish_seen_subcommand_from help' -f -a '(__deltawire_commands)'
complete -c deltawire -n '__fish_seen_subcommand_from completion' -f -a 'bash zsh fish'
for program in deltawire deltawire-sender deltawire-receiver
    complete -c $program -n 'string match -q -- "-*" (commandline -ct)' -f -a '(__deltawire_options)'
end
