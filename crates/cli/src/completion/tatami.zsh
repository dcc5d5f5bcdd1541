#compdef tatami
# Completion of `tatami` in zsh: names of the volume, nodes, options. `tatami complete` finds them.
_tatami() {
    local -a answer dirs files
    local line=(${(@)words[1,CURRENT-1]} "$PREFIX")
    answer=("${(@0)$(command -- ${words[1]/#\~/$HOME} complete --shell zsh -- "${(@)line}" 2>/dev/null)}")
    # The end of the last candidate leaves an empty one.
    answer[-1]=()
    case ${answer[1]} in
    words) compadd -- "${(@)answer[2,-1]}" ;;
    paths)
        dirs=(${(M)answer[2,-1]:#*/})
        files=(${answer[2,-1]:#*/})
        # No blank follows a directory: the path goes on.
        (( $#dirs )) && compadd -S '' -- "${(@)dirs}"
        (( $#files )) && compadd -- "${(@)files}"
        ;;
    files) _files ;;
    dirs) _files -/ ;;
    esac
}
if [ "$funcstack[1]" = "_tatami" ]; then
    _tatami "$@"
else
    compdef _tatami tatami
fi
