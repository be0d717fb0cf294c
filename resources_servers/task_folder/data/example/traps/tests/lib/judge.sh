if [ "$(cat /app/answer.txt 2>/dev/null)" = 42 ]; then echo 1.0; else echo 0.0; fi >/logs/verifier/reward.txt
