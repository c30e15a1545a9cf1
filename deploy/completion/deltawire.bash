# Completion for bash. The words come from --help, so that they are those of the installed version.
_deltawire() {
  local program=${COMP_WORDS[0]} current=${COMP_WORDS[COMP_CWORD]} command=()
  COMPREPLY=()
  if [[ ${program##*/} == deltawire ]]; then
    if [[ $current != -* ]] && ((COMP_CWORD == 1 || COMP_CWORD == 2)); then
      case $COMP_CWORD:${COMP_WORDS[1]} in
        1:* | 2:help)
          mapfile -t COMPREPLY < <(compgen -W "$("$program" --help 2>/dev/null |
            sed -n '/^Subcommands:/,/^$/s/^  \([a-z][a-z-]*\) .*/\1/p')" -- "$current")
          return
          ;;
        2:completion)
          mapfile -t COMPREPLY < <(compgen -W "bash zsh fish" -- "$current")
          return
          ;;
      esac
    fi
    ((COMP_CWORD == 1)) || command=("${COMP_WORDS[1]}")
  fi
  if [[ $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$("$program" "${command[@]}" --help 2>/dev/null |
      sed -n 's/^ *\(-[a-z],\)\{0,1\}\(--[][a-z-]*\).*/\2/p' |
      sed 's/^--\[no-\]\(.*\)/--\1 --no-\1/')" -- "$current")
  else
    compopt -o default
  fi
}
complete -F _deltawire deltawire deltawire-sender deltawire-receiver
