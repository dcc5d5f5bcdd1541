# Completion of `tatami` in fish: names of the volume, nodes, options. `tatami complete` finds them.
function __tatami_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l answer (command $words[1] complete --shell fish -- $words 2>/dev/null)
    switch "$answer[1]"
        case words paths
            printf '%s\n' $answer[2..-1]
        case files
            __fish_complete_path (commandline -ct)
        case dirs
            __fish_complete_directories (commandline -ct)
    end
end
complete -c tatami -f -a '(__tatami_complete)'
