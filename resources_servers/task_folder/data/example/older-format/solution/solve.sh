sort -o words.txt words.txt
