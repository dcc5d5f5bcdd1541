# Completion of `tatami` in bash: names of the volume, nodes, options. `tatami complete` finds them.
_tatami() {
    # Bash splits words at the characters of COMP_WORDBREAKS, such as `:` and `=`. Parts that no
    # blank separates in the line are one word.
    local rest=${COMP_LINE:0:COMP_POINT} words=() part i
    for ((i = 0; i <= COMP_CWORD; i++)); do
        part=${COMP_WORDS[i]}
        if ((i == 0)) || [[ $rest == [[:blank:]]* ]]; then
            words+=('')
            rest=${rest#"${rest%%[![:blank:]]*}"}
        fi
        ((i == COMP_CWORD)) && part=$rest
        words[${#words[@]} - 1]+=$part
        rest=${rest#"$part"}
    done
    local answer=()
    mapfile -d '' -t answer < <(command -- "${1/#\~/$HOME}" complete --shell bash \
        --breaks "$COMP_WORDBREAKS" -- "${words[@]}" 2>/dev/null)
    COMPREPLY=("${answer[@]:1}")
    # Outside of a completion, as in a test, there is no compopt.
    case ${answer[0]} in
    paths)
        # No blank follows a directory: the path goes on.
        if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} != */ ]]; then
            compopt -o filenames 2>/dev/null
        else
            compopt -o filenames -o nospace 2>/dev/null
        fi
        ;;
    files) compopt -o default 2>/dev/null ;;
    dirs) compopt -o dirnames 2>/dev/null ;;
    esac
    return 0
}
complete -F _tatami tatami
